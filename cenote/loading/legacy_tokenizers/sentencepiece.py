"""SentencePiece unigram models: each class has its own ids, special tokens and normalisation."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import Unigram

from cenote.errors import LoadError
from cenote.loading.added_tokens import add_listed_tokens
from cenote.loading.legacy_tokenizers import sentencepiece_file
from cenote.loading.legacy_tokenizers.sentencepiece_file import SentencePieceModel, read_sentencepiece
from cenote.loading.legacy_tokenizers.source import (
    BERT_NAMES,
    ROBERTA_NAMES,
    WAY_OUT,
    TokenizerSource,
    albert_steps,
    set_template,
)

T5_NAMES = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
MBART_NAMES = {"bos_token": "<s>", "eos_token": "</s>"} | ROBERTA_NAMES
ALBERT_NAMES = BERT_NAMES | {"pad_token": "<pad>", "unk_token": "<unk>"}
XLNET_NAMES = ROBERTA_NAMES | {"cls_token": "<cls>", "sep_token": "<sep>", "bos_token": "<s>", "eos_token": "</s>"}
XLNET_CLS_TYPE = 2
UNUSED_CAMEMBERT_TOKENS = ("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED")
MBART_LANGUAGES = str.split(
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP "
    "nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
)


def build_xlm_roberta(source: TokenizerSource, path: Path) -> Tokenizer:
    model, names = _read_unigram(source, path), source.special_tokens
    vocab = [*_fairseq_vocabulary(model, names), (names["mask_token"], 0.0)]
    return _build_unigram(model, vocab, unk_id=3)


def build_mbart(source: TokenizerSource, path: Path) -> Tokenizer:
    """Like XLM-RoBERTa with one token per language, which ends a text after </s>."""
    names, language = source.special_tokens, source.settings.get("src_lang") or "en_XX"
    if language not in MBART_LANGUAGES:
        raise source.refuse(f"src_lang {language!r}")
    model = _read_unigram(source, path)
    vocab = [*_fairseq_vocabulary(model, names), *((token, 0.0) for token in MBART_LANGUAGES)]
    tokenizer = _build_unigram(model, [*vocab, (names["mask_token"], 0.0)], unk_id=3)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in MBART_LANGUAGES])
    eos = names["eos_token"]
    set_template(tokenizer, f"$A {eos} {language}", f"$A $B {eos} {language}", eos, language)
    return tokenizer


def build_camembert(source: TokenizerSource, path: Path) -> Tokenizer:
    """Four tokens come before those of the file, so that ids are four higher: <s> is 5, </s> is 6."""
    model, names = _read_unigram(source, path), source.special_tokens
    bos, eos, unk = UNUSED_CAMEMBERT_TOKENS
    first = [(bos, 0.0), (names["pad_token"], 0.0), (eos, 0.0), (names["unk_token"], 0.0), (unk, -100.0)]
    tokenizer = _build_unigram(model, [*first, *_scores(model)[1:], (names["mask_token"], 0.0)], unk_id=3)
    unused = [AddedToken(token, normalized=False, special=True) for token in UNUSED_CAMEMBERT_TOKENS]
    tokenizer.add_special_tokens(unused)
    return tokenizer


def build_deberta_v2(source: TokenizerSource, path: Path) -> Tokenizer:
    model = _read_unigram(source, path)
    steps = [normalizers.Lowercase()] if source.settings.get("do_lower_case") else []
    return _build_unigram(model, _scores(model), unk_id=model.unk_id, steps=steps, strips_first=True)


def build_t5(source: TokenizerSource, path: Path) -> Tokenizer:
    model, end = _read_unigram(source, path), source.special_tokens["eos_token"]
    sentinels = reversed(range(source.settings.get("extra_ids", 100)))
    vocab = [*_scores(model), *((f"<extra_id_{number}>", 0.0) for number in sentinels)]
    tokenizer = _build_unigram(model, vocab, unk_id=model.unk_id)
    set_template(tokenizer, f"$A {end}", f"$A {end} $B {end}", end)
    return tokenizer


def build_albert(source: TokenizerSource, path: Path) -> Tokenizer:
    model, steps = _read_unigram(source, path), albert_steps(source.settings, lower_case=True)
    tokenizer = _build_unigram(model, _scores(model), unk_id=model.unk_id, steps=steps)
    add_listed_tokens(tokenizer, source.checkpoint, source.settings)  # [CLS] and [SEP] may not be in the file
    return tokenizer


def build_xlnet(source: TokenizerSource, path: Path) -> Tokenizer:
    """<sep> and <cls> end a text; <cls> has a token type of its own."""
    model, steps = _read_unigram(source, path), albert_steps(source.settings, lower_case=False)
    tokenizer = _build_unigram(model, _scores(model), unk_id=model.unk_id, steps=steps)
    cls, sep = source.special_tokens["cls_token"], source.special_tokens["sep_token"]
    end = f"{cls}:{XLNET_CLS_TYPE}"
    set_template(tokenizer, f"$A {sep} {end}", f"$A {sep} $B:1 {sep}:1 {end}", cls, sep)
    return tokenizer


def add_special_pieces(tokenizer: Tokenizer, model: SentencePieceModel) -> None:
    for piece in model.pieces:
        if piece.kind in (sentencepiece_file.CONTROL, sentencepiece_file.USER_DEFINED):
            special = piece.kind == sentencepiece_file.CONTROL
            tokenizer.add_tokens([AddedToken(piece.text, normalized=False, special=special)])


def _read_unigram(source: TokenizerSource, path: Path) -> SentencePieceModel:
    model = read_sentencepiece(path)
    if model.algorithm != sentencepiece_file.UNIGRAM:
        raise LoadError(f"{path} is a BPE model, but {source.class_name} requires unigram; {WAY_OUT}")
    return model


def _scores(model: SentencePieceModel) -> list[tuple[str, float]]:
    return [(piece.text, piece.score) for piece in model.pieces]


def _fairseq_vocabulary(model: SentencePieceModel, names: dict[str, str]) -> list[tuple[str, float]]:
    """Replace the three special tokens of SentencePiece by four, so that all other ids are one higher."""
    first = [(names[name], 0.0) for name in ("cls_token", "pad_token", "sep_token", "unk_token")]
    return [*first, *_scores(model)[3:]]


def _build_unigram(
    model: SentencePieceModel,
    vocab: list[tuple[str, float]],
    *,
    unk_id: int,
    steps: Iterable[Any] = (),
    strips_first: bool = False,
) -> Tokenizer:
    """Return the tokenizer; `strips_first`: a space that the character map writes at an end of a text is a token."""
    tokenizer = Tokenizer(Unigram(vocab, unk_id=unk_id, byte_fallback=False))
    charsmap: list[Any] = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    cleaned = [normalizers.Strip(), *charsmap] if strips_first else [*charsmap, normalizers.Strip()]
    tokenizer.normalizer = normalizers.Sequence([*steps, *cleaned, normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    add_special_pieces(tokenizer, model)
    return tokenizer
