"""Tokenizers with one token per line of vocab.txt: WordPiece, and the amino acids of ESM."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import WordLevel, WordPiece

from cenote.errors import LoadError
from cenote.loading.checkpoint import check_not_empty
from cenote.loading.legacy_tokenizers.source import (
    ROBERTA_NAMES,
    TokenizerSettings,
    TokenizerSource,
    set_template,
)

MPNET_NAMES = ROBERTA_NAMES | {"unk_token": "[UNK]"}
ESM_NAMES = {
    "cls_token": "<cls>",
    "pad_token": "<pad>",
    "eos_token": "<eos>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}


def build_wordpiece(source: TokenizerSource, path: Path) -> Tokenizer:
    tokenizer = Tokenizer(WordPiece(read_vocabulary(source, path), unk_token=source.special_tokens["unk_token"]))
    tokenizer.normalizer = bert_normalizer(source.settings)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def build_esm(source: TokenizerSource, path: Path) -> Tokenizer:
    """Every token of the vocabulary is found wherever it occurs, also inside words; other words are unknown."""
    vocab = {token.strip(): row for token, row in read_vocabulary(source, path).items()}
    tokenizer = Tokenizer(WordLevel(vocab, unk_token=source.special_tokens["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in vocab])
    cls, eos = source.special_tokens["cls_token"], source.special_tokens["eos_token"]
    set_template(tokenizer, f"{cls} $A {eos}", f"{cls} $A {eos} $B {eos}", cls, eos)
    return tokenizer


def bert_normalizer(settings: TokenizerSettings) -> normalizers.Normalizer:
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )


def read_vocabulary(source: TokenizerSource, path: Path) -> dict[str, int]:
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
        if (token := source.special_tokens.get(name)) is not None and token not in vocab:
            raise LoadError(f"{path} has no {token}, the {name}; download it again")
    return vocab
