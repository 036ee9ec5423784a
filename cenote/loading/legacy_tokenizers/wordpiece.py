"""Tokenizers with one token per line of vocab.txt: WordPiece, and the amino acids of ESM."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import WordLevel, WordPiece

from cenote.errors import LoadError
from cenote.loading.checkpoint import check_not_empty
from cenote.loading.legacy_tokenizers.source import (
    BERT_NAMES,
    ROBERTA_NAMES,
    LegacyTokenizer,
    SpecialTokens,
    TokenizerSettings,
    TokenizerSource,
    set_bert_template,
    set_roberta_template,
    set_template,
    wrap_tokenizer_errors,
)

MPNET_NAMES = ROBERTA_NAMES | {"unk_token": "[UNK]"}
ESM_NAMES = {
    "cls_token": "<cls>",
    "pad_token": "<pad>",
    "eos_token": "<eos>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}


def build_bert(source: TokenizerSource) -> LegacyTokenizer:
    tokenizer, names = build_wordpiece(source, BERT_NAMES | source.special_tokens)
    set_bert_template(tokenizer, names)
    return LegacyTokenizer(tokenizer, names)


def build_mpnet(source: TokenizerSource) -> LegacyTokenizer:
    tokenizer, names = build_wordpiece(source, MPNET_NAMES | source.special_tokens)
    set_roberta_template(tokenizer, names)
    return LegacyTokenizer(tokenizer, names, mask_takes_space=True)


def build_esm(source: TokenizerSource) -> LegacyTokenizer:
    """Every token of the vocabulary is found wherever it occurs, also inside words; other words are unknown."""
    path = source.require_vocabulary("vocab.txt")
    names = ESM_NAMES | source.special_tokens
    with wrap_tokenizer_errors(path):
        vocab = {token.strip(): row for token, row in read_vocabulary(source, path, names).items()}
        tokenizer = Tokenizer(WordLevel(vocab, unk_token=names["unk_token"]))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.add_tokens([AddedToken(token, normalized=False) for token in vocab])
        cls, eos = names["cls_token"], names["eos_token"]
        set_template(tokenizer, f"{cls} $A {eos}", f"{cls} $A {eos} $B {eos}", cls, eos)
    return LegacyTokenizer(tokenizer, names)


def bert_normalizer(settings: TokenizerSettings) -> normalizers.Normalizer:
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )


def read_vocabulary(source: TokenizerSource, path: Path, names: SpecialTokens) -> dict[str, int]:
    """Return the tokens of vocab.txt; raise LoadError for a truncated file."""
    check_not_empty(path)
    words = path.read_text(encoding="utf-8").split("\n")
    vocab = {word.rstrip("\r"): row for row, word in enumerate(words[:-1] if not words[-1] else words)}
    expected = source.config.get("vocab_size")
    if isinstance(expected, int) and len(vocab) < 0.9 * expected:  # embeddings may be padded
        raise LoadError(
            f"{path} has {len(vocab)} tokens, config.json {expected}; the file is truncated, download it again"
        )
    for name in ("unk_token", "cls_token", "sep_token"):
        if name in names and names[name] not in vocab:
            raise LoadError(f"{path} has no {names[name]}, the {name}; download it again")
    return vocab


def build_wordpiece(source: TokenizerSource, names: SpecialTokens) -> tuple[Tokenizer, SpecialTokens]:
    path = source.require_vocabulary("vocab.txt")
    with wrap_tokenizer_errors(path):
        tokenizer = Tokenizer(WordPiece(read_vocabulary(source, path, names), unk_token=names["unk_token"]))
        tokenizer.normalizer = bert_normalizer(source.settings)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer, names
