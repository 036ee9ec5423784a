"""SentencePiece models of decoders: BPE with bytes as fallback."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram

from cenote.loading.legacy_tokenizers import sentencepiece_file
from cenote.loading.legacy_tokenizers.sentencepiece import add_special_pieces
from cenote.loading.legacy_tokenizers.sentencepiece_file import SentencePieceModel, read_sentencepiece
from cenote.loading.legacy_tokenizers.source import SpecialTokens, TokenizerSource

LLAMA_NAMES = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
INTERNLM2_NAMES = LLAMA_NAMES | {"pad_token": "</s>"}


def build_llama(source: TokenizerSource, path: Path) -> Tokenizer:
    model = read_sentencepiece(path)
    tokenizer = _build_subwords(model, source.special_tokens)
    has_prefix = bool(source.settings.get("add_prefix_space", True))
    prefix = [normalizers.Prepend("▁")] if has_prefix else []
    if source.settings.get("legacy", True):
        tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    else:
        scheme = "first" if has_prefix else "never"
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    tokenizer.decoder = _decoder(strips_prefix=has_prefix)
    add_special_pieces(tokenizer, model)
    return tokenizer


def build_internlm2(source: TokenizerSource, path: Path) -> Tokenizer:
    """Unlike Llama's, the file says how spaces are treated."""
    model = read_sentencepiece(path)
    tokenizer = _build_subwords(model, source.special_tokens)
    steps: list[Any] = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    if model.removes_extra_spaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    steps += [normalizers.Prepend("▁")] if model.adds_dummy_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    tokenizer.decoder = _decoder(strips_prefix=model.adds_dummy_prefix)
    add_special_pieces(tokenizer, model)
    return tokenizer


def _build_subwords(model: SentencePieceModel, names: SpecialTokens) -> Tokenizer:
    vocab = {piece.text: row for row, piece in enumerate(model.pieces)}
    if names["unk_token"] not in vocab:
        raise ValueError(f"no {names['unk_token']} in the vocabulary")
    if model.algorithm == sentencepiece_file.UNIGRAM:
        pieces = [(piece.text, piece.score) for piece in model.pieces]
        return Tokenizer(Unigram(pieces, unk_id=model.unk_id, byte_fallback=True))
    scores = {piece.text: piece.score for piece in model.pieces}
    merges = _derive_merges(vocab, scores)
    return Tokenizer(BPE(vocab, merges, unk_token=names["unk_token"], fuse_unk=True, byte_fallback=True))


def _decoder(*, strips_prefix: bool) -> decoders.Decoder:
    parts: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*parts, decoders.Strip(content=" ", left=1)] if strips_prefix else parts)


def _derive_merges(vocab: Mapping[str, int], scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Derive BPE merges from a vocabulary: every split of a piece into two others, highest scores first."""
    found: list[tuple[float, str, str]] = []
    for piece, score in scores.items():
        splits = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        known = [(left, right) for left, right in splits if left in vocab and right in vocab]
        found += [(score, *pair) for pair in sorted(known, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))]
    found.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [(left, right) for _, left, right in found]
