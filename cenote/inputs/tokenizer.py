"""A fast tokenizer, with the special tokens that it puts around one text or two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tokenizers

from cenote.errors import BadRequest
from cenote.inputs.wordpiece import load_native_wordpiece
from cenote.protocol.input_types import ScoreInput
from cenote.protocol.params import TruncationSide

TokenIds: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"

# a longer text is tokenized in pieces of this many characters, so that the tokenizer's own records stay small
CHUNK_CHARS = 200_000
# how far back from the end of a piece a space to cut at is looked for
SPLIT_SEARCH_CHARS = 10_000
# tokens at the cut end of a text that the whole might read otherwise: a word cut short makes no more than these
CROP_MARGIN_TOKENS = 128
# a text has fewer characters per token than this, unless it is made to have more; then no more of it is looked at
MAX_TYPICAL_CHARS_PER_TOKEN = 16
MAX_SCANNED_CHARS = 4_000_000
# spaces that some tokenizers want taken out of what they have decoded, in this order
CLEAN_UP_REPLACEMENTS = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    *((f" {ending}", ending) for ending in ("n't", "'m", "'s", "'ve", "'re")),
)


@dataclass(frozen=True, slots=True)
class SpecialTokensTemplate:
    """The special tokens around one text (`middle` is empty) or two, and the type of each part."""

    prefix: TokenIds
    separator: TokenIds
    suffix: TokenIds
    second_type_id: int = 0  # token type of the second text

    @property
    def num_tokens(self) -> int:
        return len(self.prefix) + len(self.separator) + len(self.suffix)

    @property
    def without_special_tokens(self) -> SpecialTokensTemplate:
        """The same without its special tokens."""
        return replace(self, prefix=self.prefix[:0], separator=self.separator[:0], suffix=self.suffix[:0])


class FlatEncoding(NamedTuple):
    """The tokens of many texts end to end: `ids[offsets[i]:offsets[i + 1]]` are those of text number `i`."""

    ids: TokenIds
    cu_seqlens: np.ndarray[Any, np.dtype[np.int64]]


class OffsetEncoding(NamedTuple):
    """The tokens of a text and the characters that each was made of: `text[start:end]`."""

    token_ids: TokenIds
    starts: TokenIds
    ends: TokenIds


class TruncatedText(NamedTuple):
    """A text as far as it is read, or something with images, as it is."""

    text: ScoreInput
    num_truncated_tokens: int  # tokens after that; of a huge text, at least so many


class Tokenizer:
    def __init__(
        self,
        raw: tokenizers.Tokenizer,
        *,
        truncation_side: TruncationSide = "right",
        pad_token_id: int | None = None,
        lower_case: bool = False,
        has_token_types: bool = True,
        clean_up: bool = False,
    ) -> None:
        self.raw = raw
        self.truncation_side = truncation_side
        self.pad_token_id = pad_token_id
        self.lower_case = lower_case
        self.clean_up = clean_up
        self.single_template = _detect_template(raw.encode("a"))
        pair = _detect_template(raw.encode("a", "a"))
        self.pair_template = pair if has_token_types else replace(pair, second_type_id=0)
        vocabulary = raw.get_vocab(with_added_tokens=True)
        self.max_token_id = max(vocabulary.values(), default=0)
        self.max_chars_per_token = max(map(len, vocabulary), default=1)
        self._is_known_id = np.zeros(self.max_token_id + 1, dtype=bool)  # a vocabulary may have gaps
        self._is_known_id[list(vocabulary.values())] = True
        self._native_wordpiece = load_native_wordpiece(raw)
        both, first, second = (
            raw.encode(text, add_special_tokens=False).ids for text in ("alpha beta", "alpha", " beta")
        )
        self._has_space_prefixed_tokens = both == first + second

    def encode(self, texts: Sequence[str], *, lower_case: bool | None = None) -> list[TokenIds]:
        """The ids of every text without special tokens; runs outside the interpreter lock."""
        ids, offsets = self.encode_flat(texts, lower_case=lower_case)
        return [ids[start:end] for start, end in pairwise(offsets.tolist())]

    def encode_flat(self, texts: Sequence[str], *, lower_case: bool | None = None) -> FlatEncoding:
        """The same in one array."""
        if self.lower_case if lower_case is None else lower_case:
            texts = [text.lower() for text in texts]
        try:
            return self._encode(texts)
        except (TypeError, UnicodeEncodeError):
            for text in texts:
                check_unicode(text)
            raise

    def encode_with_offsets(self, texts: Sequence[str], *, lower_case: bool | None = None) -> list[OffsetEncoding]:
        """The ids of every text without special tokens, and where the text has each; slower than `encode`."""
        lowers = self.lower_case if lower_case is None else lower_case
        read = [check_unicode(text).lower() if lowers else check_unicode(text) for text in texts]
        short = [text for text in read if len(text) <= CHUNK_CHARS]
        encodings = iter(self.raw.encode_batch(short, add_special_tokens=False))
        return [
            _merge_offset_encodings(
                text, each, [(0, next(encodings))] if len(each) <= CHUNK_CHARS else self._encode_long_with_offsets(each)
            )
            for text, each in zip(texts, read, strict=True)
        ]

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included; runs outside the interpreter lock."""
        text: str
        (text,) = self.raw.decode_batch([self._check_ids(token_ids).tolist()], skip_special_tokens=False)
        if self.clean_up:
            for found, instead in CLEAN_UP_REPLACEMENTS:
                text = text.replace(found, instead)
        return text

    def convert_ids_to_tokens(self, token_ids: Sequence[int]) -> list[str]:
        """Every token as the vocabulary writes it; nothing for the rows that some models have beyond theirs."""
        return [self.raw.id_to_token(token) or "" for token in token_ids]

    def _check_ids(self, token_ids: Sequence[int]) -> np.ndarray[Any, Any]:
        ids = to_id_array(token_ids, "tokens")
        check_token_ids(ids, self.max_token_id + 1, "tokens")
        ids = ids.astype(np.int64)
        if not self._is_known_id[ids].all():
            raise BadRequest(
                f"Token id {ids[~self._is_known_id[ids]][0]} is out of vocabulary: among the ids from 0 to "
                f"{self.max_token_id}, it is not used",
                param="tokens",
            )
        return ids

    def truncate_texts(self, texts: Sequence[str], max_tokens: int) -> list[TruncatedText]:
        """Every text, ended where token number `max_tokens` ends; one that is no Unicode is refused elsewhere."""
        parts = [self.crop_text(text, max_tokens, "right") if is_unicode(text) else "" for text in texts]
        if self.lower_case:
            parts = [part.lower() for part in parts]
        encodings = self.raw.encode_batch(parts, add_special_tokens=False)
        return [
            TruncatedText(text, 0)
            if len(encoding) <= max_tokens
            else TruncatedText(text[: encoding.offsets[max_tokens - 1][1]], len(encoding) - max_tokens)
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def crop_text(
        self, text: str, max_tokens: int, truncation_side: TruncationSide, *, lower_case: bool | None = None
    ) -> str:
        """As much of a huge text as decides its first `max_tokens` tokens, or its last when the left side is cut."""
        wanted = max_tokens + CROP_MARGIN_TOKENS
        most = wanted * min(self.max_chars_per_token, MAX_TYPICAL_CHARS_PER_TOKEN)
        while len(text) > most:
            part = text[:most] if truncation_side == "right" else text[-most:]
            # white space and unknown words can hide any number of characters in few tokens
            if most >= MAX_SCANNED_CHARS or len(self.encode([part], lower_case=lower_case)[0]) > wanted:
                return part
            most = min(4 * most, MAX_SCANNED_CHARS)
        return text

    def _encode(self, texts: Sequence[str]) -> FlatEncoding:
        if self._native_wordpiece is None:
            return _concat_encodings(self._encode_with_library(texts))
        ids, offsets, left = self._native_wordpiece.encode(texts)
        if not left:
            return FlatEncoding(ids, offsets)
        rest, ends = _concat_encodings(self._encode_with_library([texts[row] for row in left]))
        lengths, rest_lengths = np.diff(offsets), np.diff(ends)
        lengths[left] = rest_lengths
        return FlatEncoding(np.insert(ids, np.repeat(offsets[left], rest_lengths), rest), _to_cu_seqlens(lengths))

    def _encode_with_library(self, texts: Sequence[str]) -> list[TokenIds]:
        short = [text for text in texts if len(text) <= CHUNK_CHARS]
        encodings = iter(self.raw.encode_batch_fast(short, add_special_tokens=False))
        return [
            _encoding_ids(next(encodings)) if len(text) <= CHUNK_CHARS else self._encode_long(text) for text in texts
        ]

    def _encode_long(self, text: str) -> TokenIds:
        pieces = (piece for _, piece in self._iter_chunks(text))
        return np.concatenate(
            [_encoding_ids(self.raw.encode_batch_fast([piece], add_special_tokens=False)[0]) for piece in pieces]
        )

    def _encode_long_with_offsets(self, text: str) -> Iterator[tuple[int, tokenizers.Encoding]]:
        for start, piece in self._iter_chunks(text):
            yield start, self.raw.encode_batch([piece], add_special_tokens=False)[0]

    def _iter_chunks(self, text: str) -> Iterator[tuple[int, str]]:
        """The parts of a long text that are tokenized one after the other, and where each begins."""
        start = 0
        while start < len(text):
            end = _find_split_point(text, start + CHUNK_CHARS)
            yield start, text[start:end]
            # sentencepiece puts a space before every text by itself: then the one at the seam is not needed
            start = end if self._has_space_prefixed_tokens or text[end : end + 1] != " " else end + 1


def to_id_array(token_ids: Sequence[int], param: str = "input") -> np.ndarray[Any, Any]:
    """Token ids as one array; numbers that fit no machine word stay Python's own."""
    try:
        ids = np.asarray(token_ids)
        if ids.dtype.kind in "fO":  # nothing, or numbers too large, or no numbers at all
            ids = np.asarray(token_ids, dtype=object)
    except (ValueError, OverflowError):  # a list of lists
        ids = np.asarray(None)
    large = ids.dtype == object and all(isinstance(token, int) and not isinstance(token, bool) for token in ids.flat)
    if ids.ndim != 1 or not (large or ids.dtype.kind in "iu"):
        raise BadRequest("Token prompt should be a list of integers", param=param)
    return ids


def check_token_ids(ids: np.ndarray[Any, Any], vocab_size: int, param: str = "input") -> None:
    beyond = ((ids < 0) | (ids >= vocab_size)).astype(bool)
    if beyond.any():
        raise BadRequest(
            f"Token id {ids[beyond][0]} is out of vocabulary: ids go from 0 to {vocab_size - 1}", param=param
        )


def check_unicode(text: str) -> str:
    """Half a surrogate pair is no text: it has no UTF-8 form and reaches us only through careless JSON."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"the text is not valid Unicode: a lone surrogate {text[error.start]!r} at character {error.start}",
            param="input",
        ) from None
    return text


def is_unicode(text: str) -> bool:
    try:
        check_unicode(text)
    except BadRequest:
        return False
    return True


def _encoding_ids(encoding: tokenizers.Encoding) -> TokenIds:
    return np.array(encoding.ids, dtype=np.int32)


def _concat_encodings(parts: Sequence[TokenIds]) -> FlatEncoding:
    lengths = np.fromiter(map(len, parts), dtype=np.int64, count=len(parts))
    return FlatEncoding(np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32), _to_cu_seqlens(lengths))


def _to_cu_seqlens(lengths: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths)))


def _merge_offset_encodings(
    text: str, normalized_text: str, encodings: Iterable[tuple[int, tokenizers.Encoding]]
) -> OffsetEncoding:
    """The tokens of the parts of a text, placed in the text as it was sent."""
    ids, places = [], []
    for start, encoding in encodings:
        ids.append(_encoding_ids(encoding))
        places.append(np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2) + start)
    starts, ends = np.concatenate(places).T
    if len(normalized_text) != len(text):  # a few letters are several in lower case
        lengths = np.fromiter((len(letter.lower()) for letter in text), dtype=np.int32, count=len(text))
        origins = np.append(np.repeat(np.arange(len(text), dtype=np.int32), lengths), np.int32(len(text)))
        starts, ends = origins[starts], np.where(ends > starts, origins[ends - 1] + 1, origins[starts])
    return OffsetEncoding(np.concatenate(ids), starts, ends)


def _detect_template(encoding: tokenizers.Encoding) -> SpecialTokensTemplate:
    owners, ids = encoding.sequence_ids, np.array(encoding.ids, dtype=np.int32)
    inside = [place for place, owner in enumerate(owners) if owner is not None]
    if not inside:  # the probe is unknown to this vocabulary
        return SpecialTokensTemplate(ids[:0], ids[:0], ids[:0])
    middle = [place for place in range(inside[0], inside[-1]) if owners[place] is None]
    second_type = encoding.type_ids[inside[-1]]
    return SpecialTokensTemplate(ids[: inside[0]], ids[middle], ids[inside[-1] + 1 :], second_type)


def _find_split_point(text: str, limit: int) -> int:
    """The last place before `limit` where one single space stands between two letters; else `limit` itself.

    Other neighbours may vanish in the tokenizer, and the space with them.
    """
    if limit >= len(text):
        return len(text)
    place = limit
    while (place := text.rfind(" ", limit - SPLIT_SEARCH_CHARS, place)) > 0:
        if text[place - 1].isalnum() and text[place + 1].isalnum():
            return place
    return limit
