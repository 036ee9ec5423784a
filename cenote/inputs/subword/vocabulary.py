"""Read the configuration and vocabulary of a BPE or Unigram tokenizer for the native encoder."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeAlias

import msgspec
import numpy as np
import tokenizers

from cenote.inputs.subword.chars import PageFunction, make_byte_level_pages, make_sentencepiece_pages
from cenote.inputs.subword.components import META_SPACE, UnknownTokenizer, to_internal
from cenote.inputs.subword.normalizers import parse_nfc, parse_sentencepiece_normalizer
from cenote.inputs.subword.pretokenizers import (
    ALWAYS_ADD_PREFIX,
    KEEP_PREFIX,
    ByteLevelSplit,
    MetaspaceSplit,
    parse_pre_tokenizer,
)

# as in encoder.c
BYTE_BPE, CHAR_BPE, UNIGRAM = range(3)
EVERY_SPACE, AFTER_WORDS, NOWHERE = range(3)
UNKNOWN_PENALTY = 10.0  # subtracted from the lowest score for unknown characters
NO_ID = -1

ModelFields: TypeAlias = tuple[dict[str, float], dict[str, bytes]]  # numbers and arrays
ModelReader: TypeAlias = Callable[[tokenizers.Tokenizer, MetaspaceSplit], ModelFields]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Fields of SubwordSpec: numbers, and arrays by name."""

    numbers: Mapping[str, float]
    make_page: PageFunction
    arrays: dict[str, bytes] = field(default_factory=dict)


class BPEModel(msgspec.Struct):
    """State of `tokenizers.models.BPE`."""

    vocab: dict[str, int]
    merges: list[tuple[str, str]]
    dropout: float | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None
    byte_fallback: bool = False
    ignore_merges: bool = False


class UnigramModel(msgspec.Struct):
    """State of `tokenizers.models.Unigram`."""

    vocab: list[tuple[str, float]]
    unk_id: int | None = None
    byte_fallback: bool = False


def check_algorithm(raw: tokenizers.Tokenizer) -> str:
    """Return a description of the tokenizer; raise UnknownTokenizer if its model or pre-tokenizer is not known."""
    if not isinstance(raw.model, tokenizers.models.BPE | tokenizers.models.Unigram):
        raise UnknownTokenizer(f"model {type(raw.model).__name__}")
    is_byte_level = isinstance(parse_pre_tokenizer(_state(raw.pre_tokenizer)), ByteLevelSplit)
    if isinstance(raw.model, tokenizers.models.BPE):
        return "byte-level BPE" if is_byte_level else "SentencePiece BPE"
    if is_byte_level:
        raise UnknownTokenizer("Unigram with the pre-tokenizer ByteLevel")
    return "Unigram"


def read_vocabulary(raw: tokenizers.Tokenizer) -> Vocabulary:
    """Raise UnknownTokenizer if the native encoder cannot encode as this tokenizer does."""
    check_algorithm(raw)
    if raw.truncation is not None or raw.padding is not None:
        raise UnknownTokenizer("it truncates or pads")
    if raw.encode_special_tokens:
        raise UnknownTokenizer("it encodes special tokens as text")
    split = parse_pre_tokenizer(_state(raw.pre_tokenizer))
    if isinstance(split, ByteLevelSplit):
        return _read_byte_level(raw, split)
    is_bpe = isinstance(raw.model, tokenizers.models.BPE)
    return _read_sentencepiece(raw, split, _read_char_bpe if is_bpe else _read_unigram)


def _state(part: Any) -> Any:
    try:
        return None if part is None else msgspec.json.decode(part.__getstate__())
    except Exception as error:  # the library has no other class for this
        raise UnknownTokenizer(f"{type(part).__name__} in Python") from error


def _read_byte_level(raw: tokenizers.Tokenizer, split: ByteLevelSplit) -> Vocabulary:
    is_nfc = parse_nfc(_state(raw.normalizer))
    model = _read_bpe_model(raw)
    vocabulary = model.vocab
    letters = _byte_letters()
    numbers = {
        "algorithm": BYTE_BPE,
        "pattern": split.pattern,
        "adds_prefix_space": split.adds_prefix_space,
        "is_nfc": is_nfc,
        "matches_words": model.ignore_merges,
    }
    arrays = _pack_merges(model) | {"byte_ids": _ints(vocabulary.get(letter, NO_ID) for letter in letters)}
    if model.ignore_merges:
        byte_of = {letter: byte for byte, letter in enumerate(letters)}
        words = {token: row for token, row in vocabulary.items() if token and all(char in byte_of for char in token)}
        arrays |= _pack("piece", [bytes(map(byte_of.__getitem__, token)) for token in words], words.values())
    arrays |= _pack_added_tokens(raw, lambda text: text)
    return Vocabulary(numbers, make_byte_level_pages(raw.normalizer), arrays)


def _byte_letters() -> list[str]:
    """Return the character that stands for each byte: printable bytes themselves, the others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _read_bpe_model(raw: tokenizers.Tokenizer) -> BPEModel:
    model = msgspec.json.decode(raw.model.__getstate__(), type=BPEModel)
    if model.dropout is not None:
        raise UnknownTokenizer("BPE with dropout")
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        raise UnknownTokenizer("BPE with continuing_subword_prefix or end_of_word_suffix")
    return model


def _pack_merges(model: BPEModel) -> dict[str, bytes]:
    merges, find = model.merges, model.vocab.__getitem__
    ids = np.empty((len(merges), 3), dtype=np.int32)
    ids[:, 0] = np.fromiter((find(left) for left, _ in merges), dtype=np.int32, count=len(merges))
    ids[:, 1] = np.fromiter((find(right) for _, right in merges), dtype=np.int32, count=len(merges))
    ids[:, 2] = np.fromiter((find(left + right) for left, right in merges), dtype=np.int32, count=len(merges))
    return {"merges": ids.tobytes()}


def _read_sentencepiece(raw: tokenizers.Tokenizer, split: MetaspaceSplit, read_model: ModelReader) -> Vocabulary:
    normalizer = parse_sentencepiece_normalizer(_state(raw.normalizer))
    if split.needs_meta_spaces and not normalizer.replaces_spaces:
        raise UnknownTokenizer("spaces are not replaced by U+2581")
    if split.splits_spaces and (normalizer.collapsed_space != " " or normalizer.replaces_spaces or normalizer.prepends):
        raise UnknownTokenizer("pre-tokenizer WhitespaceSplit with a normalizer that adds U+2581")
    if normalizer.prepends and (split.prefix != KEEP_PREFIX or not normalizer.replaces_spaces):
        raise UnknownTokenizer("normalizer Prepend with this pre-tokenizer")
    numbers, arrays = read_model(raw, split)
    numbers |= {
        "has_char_map": bool(normalizer.char_map),
        "strips_before": normalizer.strips_before,
        "strips_after": normalizer.strips_after,
        "collapses_spaces": normalizer.collapses_spaces,
        "splits_spaces": split.splits_spaces,
        "prefix": ALWAYS_ADD_PREFIX if normalizer.prepends else split.prefix,
    }
    arrays |= _pack_added_tokens(raw, to_internal)
    if split.splits_spaces and any(token.isspace() for token in "".join(_normalized_added_tokens(raw))):
        raise UnknownTokenizer("pre-tokenizer WhitespaceSplit with added tokens that contain spaces")
    return Vocabulary(numbers, make_sentencepiece_pages(normalizer.char_map), arrays)


def _read_char_bpe(raw: tokenizers.Tokenizer, split: MetaspaceSplit) -> ModelFields:
    model = _read_bpe_model(raw)
    vocabulary = model.vocab
    if model.ignore_merges:
        raise UnknownTokenizer("BPE of characters with ignore_merges")
    splits = EVERY_SPACE if split.splits else AFTER_WORDS if _keeps_words_apart(model.merges) else NOWHERE
    chars = {to_internal(token): row for token, row in vocabulary.items() if len(token) == 1 and token != " "}
    arrays = _pack_merges(model) | {
        "byte_ids": _pack_byte_ids(vocabulary, model.byte_fallback),
        "char_codes": array("I", map(ord, chars)).tobytes(),
        "char_ids": _ints(chars.values()),
    }
    return {"algorithm": CHAR_BPE, "splits": splits}, arrays


def _keeps_words_apart(merges: Iterable[Sequence[str]]) -> bool:
    """Return whether no token has U+2581 after another character, so that words can be encoded one by one."""
    return not any(right.startswith(META_SPACE) and not left.endswith(META_SPACE) for left, right in merges)


def _read_unigram(raw: tokenizers.Tokenizer, split: MetaspaceSplit) -> ModelFields:
    model = msgspec.json.decode(raw.model.__getstate__(), type=UnigramModel)
    if model.unk_id is None:
        raise UnknownTokenizer("Unigram without an unknown token")
    if not split.splits:
        raise UnknownTokenizer("Unigram with words that are not split at spaces")
    tokens, scores = [token for token, _ in model.vocab], [score for _, score in model.vocab]
    vocabulary = {token: row for row, token in enumerate(tokens)}
    # a token with a space matches no text: all spaces have become U+2581
    pieces = [b"" if " " in token else to_internal(token).encode() for token in tokens]
    arrays = _pack("piece", pieces, ())
    arrays["scores"] = array("d", scores).tobytes()
    arrays["byte_ids"] = _pack_byte_ids(vocabulary, model.byte_fallback)
    numbers = {
        "algorithm": UNIGRAM,
        "splits": EVERY_SPACE,
        "unk_id": model.unk_id,
        "unk_score": min(scores) - UNKNOWN_PENALTY,
        "has_byte_fallback": model.byte_fallback,
    }
    return numbers, arrays


def _pack_byte_ids(vocabulary: Mapping[str, int], has_byte_fallback: bool) -> bytes:
    if has_byte_fallback and META_SPACE not in vocabulary:
        raise UnknownTokenizer("byte fallback without U+2581 in the vocabulary")
    ids = [vocabulary.get(f"<0x{byte:02X}>", NO_ID) for byte in range(256)]
    return _ints(ids if has_byte_fallback else [NO_ID] * 256)


def _pack_added_tokens(raw: tokenizers.Tokenizer, convert: Callable[[str], str]) -> dict[str, bytes]:
    """Pack the tokens matched in texts and in normalized texts; -1 where a match depends on the text around it."""
    added = raw.get_added_tokens_decoder()
    kinds: dict[bool, list[tuple[str, int]]] = {False: [], True: []}
    for row, token in added.items():
        is_plain = not (token.single_word or token.lstrip or token.rstrip)
        kinds[token.normalized].append((token.content, row if is_plain else NO_ID))
    normalized = [convert(text) for text in _normalized_added_tokens(raw)]
    if "" in normalized or any(not text for text, _ in kinds[False]):
        raise UnknownTokenizer("an added token is empty")
    return {
        **_pack("raw_added", [text.encode() for text, _ in kinds[False]], [row for _, row in kinds[False]]),
        **_pack("normalized_added", [text.encode() for text in normalized], [row for _, row in kinds[True]]),
    }


def _normalized_added_tokens(raw: tokenizers.Tokenizer) -> list[str]:
    """Return the added tokens that are matched in normalized text, normalized themselves."""
    tokens = [token.content for token in raw.get_added_tokens_decoder().values() if token.normalized]
    return tokens if raw.normalizer is None else [raw.normalizer.normalize_str(token) for token in tokens]


def _pack(name: str, items: Sequence[bytes], ids: Iterable[int]) -> dict[str, bytes]:
    data = "pieces" if name == "piece" else name
    ends = array("Q", accumulate(map(len, items))).tobytes()
    return {data: b"".join(items), f"{name}_ends": ends, f"{name}_ids": _ints(ids)}


def _ints(values: Iterable[int]) -> bytes:
    return array("i", values).tobytes()
