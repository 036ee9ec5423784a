"""Byte-pair encoding with vocab.json and merges.txt: byte-level (GPT-2, RoBERTa, DeBERTa, Qwen), and HerBERT."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from cenote.errors import LoadError
from cenote.loading.checkpoint import check_not_empty
from cenote.loading.legacy_tokenizers.source import (
    TokenizerSettings,
    TokenizerSource,
    set_template,
    wrap_tokenizer_errors,
)

GPT2_NAMES = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
CLIP_NAMES = dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>") | {"bos_token": "<|startoftext|>"}
CLIP_SPLIT_PATTERN = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
QWEN_SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def build_byte_level(source: TokenizerSource, path: Path) -> Tokenizer:
    tokenizer = Tokenizer(_read_bpe(source))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=_adds_prefix_space(source.settings))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def build_gpt2(source: TokenizerSource, path: Path) -> Tokenizer:
    tokenizer = build_byte_level(source, path)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def build_qwen2(source: TokenizerSource, path: Path) -> Tokenizer:
    tokenizer = build_gpt2(source, path)
    split_as_qwen(tokenizer, source.settings)
    return tokenizer


def split_as_qwen(tokenizer: Tokenizer, settings: TokenizerSettings, pattern: str = QWEN_SPLIT_PATTERN) -> None:
    words = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    rest = pre_tokenizers.ByteLevel(add_prefix_space=_adds_prefix_space(settings), use_regex=False)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, rest])


def build_herbert(source: TokenizerSource, path: Path) -> Tokenizer:
    tokenizer = Tokenizer(_read_bpe(source, unk_token=source.special_tokens["unk_token"], end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=False
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    return tokenizer


def build_clip(source: TokenizerSource, path: Path) -> Tokenizer:
    names = source.special_tokens
    tokenizer = Tokenizer(_read_bpe(source, unk_token=names["unk_token"], end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    words = pre_tokenizers.Split(Regex(CLIP_SPLIT_PATTERN), behavior="removed", invert=True)
    rest = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, rest])
    tokenizer.decoder = decoders.ByteLevel()
    start, end = names["bos_token"], names["eos_token"]
    set_template(tokenizer, f"{start} $A {end}", f"{start} $A {end} {end} $B {end}", start, end)
    return tokenizer


def _adds_prefix_space(settings: TokenizerSettings) -> bool:
    return bool(settings.get("add_prefix_space", False))  # published as null, too


def _read_bpe(source: TokenizerSource, **options: str) -> BPE:
    vocab = source.checkpoint.read_json_object("vocab.json")
    merges = source.checkpoint.require_file("merges.txt")
    check_not_empty(merges)
    lines = merges.read_text(encoding="utf-8").split("\n")
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    _check_merges(vocab, pairs, merges)
    with wrap_tokenizer_errors(merges):
        return BPE(vocab, [(pair[0], pair[1]) for pair in pairs], **options)


def _check_merges(vocab: Mapping[str, int], pairs: list[tuple[str, ...]], path: Path) -> None:
    bad = next((pair for pair in pairs if len(pair) != 2), None)
    merged = {"".join(pair) for pair in pairs}
    orphans = sum(len(token) > 1 and token not in merged for token in vocab)
    if bad is not None or orphans > len(vocab) // 20 + 100:
        reason = f"{' '.join(bad)!r} is not a pair" if bad else f"{orphans} of {len(vocab)} tokens have no merge"
        raise LoadError(f"{path} is truncated: {reason}; download it again")
