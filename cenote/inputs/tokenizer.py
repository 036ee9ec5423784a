"""Tokenizer of a model: a `tokenizers.Tokenizer` with its special-token templates, and fast paths for many texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tokenizers

from cenote.errors import BadRequest
from cenote.inputs.native_encoding import insert_encodings, to_cu_seqlens
from cenote.inputs.native_tokenizer import choose_encoder
from cenote.protocol.input_types import TEXTS_ADVICE, ScoreInput
from cenote.protocol.params import TokenizationParams, TruncationSide

TokenIds: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"

# longer texts are tokenized in chunks of this many characters, to bound the memory of `tokenizers.Encoding`
CHUNK_CHARS = 200_000
# how far back from the end of a chunk to search for a space to split at
SPLIT_SEARCH_CHARS = 10_000
# cropping inside a word can change the tokens at that end: crop this many tokens beyond the limit
CROP_MARGIN_TOKENS = 128
# ordinary texts have fewer characters per token; others are scanned further, up to MAX_SCANNED_CHARS
MAX_TYPICAL_CHARS_PER_TOKEN = 16
MAX_SCANNED_CHARS = 4_000_000
# clean_up_tokenization_spaces of Transformers: replacements in decoded text, in this order
CLEAN_UP_REPLACEMENTS = (
    *((f" {character}", character) for character in ".?!,"),
    (" ' ", "'"),
    *((f" {ending}", ending) for ending in ("n't", "'m", "'s", "'ve", "'re")),
)


@dataclass(frozen=True, slots=True)
class SpecialTokensTemplate:
    """Special tokens around one text (`separator` is empty) or around two texts."""

    prefix: TokenIds
    separator: TokenIds
    suffix: TokenIds
    second_type_id: int = 0  # token type of the second text

    @property
    def num_tokens(self) -> int:
        return len(self.prefix) + len(self.separator) + len(self.suffix)

    @property
    def without_special_tokens(self) -> SpecialTokensTemplate:
        return replace(self, prefix=self.prefix[:0], separator=self.separator[:0], suffix=self.suffix[:0])


class FlatEncoding(NamedTuple):
    """Concatenated token ids of many texts: those of text `i` are `ids[cu_seqlens[i]:cu_seqlens[i + 1]]`."""

    ids: TokenIds
    cu_seqlens: np.ndarray[Any, np.dtype[np.int64]]


class OffsetEncoding(NamedTuple):
    """Token ids of a text, and the character range `text[start:end]` of each token."""

    token_ids: TokenIds
    starts: TokenIds
    ends: TokenIds


class TruncatedText(NamedTuple):
    """A truncated text; a score input with images is left unchanged."""

    text: ScoreInput
    num_truncated_tokens: int  # number of tokens removed; a lower bound for huge texts


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
        self._is_known_id = np.zeros(self.max_token_id + 1, dtype=bool)  # vocabularies may have gaps
        self._is_known_id[list(vocabulary.values())] = True
        self.native = choose_encoder(raw)
        # whether the space before a word belongs to its token, so that splitting before a space is exact
        joint_ids, first_ids, second_ids = (
            raw.encode(text, add_special_tokens=False).ids for text in ("alpha beta", "alpha", " beta")
        )
        self._has_space_prefixed_tokens = joint_ids == first_ids + second_ids

    def find_template(self, tokenization: TokenizationParams, *, is_pair: bool = False) -> SpecialTokensTemplate:
        """Return the special tokens that a request gets around a text or a pair."""
        template = self.pair_template if is_pair else self.single_template
        return template if tokenization.add_special_tokens else template.without_special_tokens

    def find_truncation_side(self, tokenization: TokenizationParams) -> TruncationSide:
        return tokenization.truncation_side or self.truncation_side

    def encode(self, texts: Sequence[str], *, lower_case: bool | None = None) -> list[TokenIds]:
        """Return the ids of every text without special tokens; releases the GIL."""
        ids, offsets = self.encode_flat(texts, lower_case=lower_case)
        return [ids[start:end] for start, end in pairwise(offsets.tolist())]

    def encode_flat(self, texts: Sequence[str], *, lower_case: bool | None = None) -> FlatEncoding:
        """Like `encode`, in one array."""
        if self.lower_case if lower_case is None else lower_case:
            texts = [text.lower() for text in texts]
        try:
            return self._encode(texts)
        except (TypeError, UnicodeEncodeError):
            for text in texts:
                check_unicode(text)
            raise

    def encode_with_offsets(self, texts: Sequence[str], *, lower_case: bool | None = None) -> list[OffsetEncoding]:
        """Return the ids and character offsets of every text, without special tokens; slower than `encode`."""
        lowercases = self.lower_case if lower_case is None else lower_case
        normalized_texts = [check_unicode(text).lower() if lowercases else check_unicode(text) for text in texts]
        short = [text for text in normalized_texts if len(text) <= CHUNK_CHARS]
        encodings = iter(self.raw.encode_batch(short, add_special_tokens=False))
        return [
            _merge_offset_encodings(
                text,
                normalized,
                [(0, next(encodings))]
                if len(normalized) <= CHUNK_CHARS
                else self._encode_long_with_offsets(normalized),
            )
            for text, normalized in zip(texts, normalized_texts, strict=True)
        ]

    def find_offsets(self, text: str, token_ids: Sequence[int]) -> list[tuple[int, int] | None] | None:
        """Return the characters of each token of a text, None for the special tokens around it.

        None if the model's format inserts tokens into the text.
        """
        encoding = self.encode_with_offsets([text])[0]
        expected = encoding.token_ids.tolist()
        num_special = len(token_ids) - len(expected)
        for before in range(num_special + 1):
            if list(token_ids[before : before + len(expected)]) == expected:
                spans = zip(encoding.starts.tolist(), encoding.ends.tolist(), strict=True)
                return [*[None] * before, *spans, *[None] * (num_special - before)]
        return None

    def detokenize(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of token ids; releases the GIL."""
        text: str
        ids = self._check_ids(token_ids).tolist()
        (text,) = self.raw.decode_batch([ids], skip_special_tokens=skip_special_tokens)
        return clean_up_spaces(text) if self.clean_up else text

    def convert_ids_to_tokens(self, token_ids: Sequence[int]) -> list[str]:
        """Return the vocabulary entry of every id; empty for ids beyond the vocabulary (padded embedding tables)."""
        return [self.raw.id_to_token(token) or "" for token in token_ids]

    def _check_ids(self, token_ids: Sequence[int]) -> np.ndarray[Any, Any]:
        ids = to_id_array(token_ids, "tokens")
        check_token_ids(ids, self.max_token_id + 1, "tokens")
        ids = ids.astype(np.int64)
        if not self._is_known_id[ids].all():
            raise BadRequest(
                f"Token id {ids[~self._is_known_id[ids]][0]} is out of vocabulary: it is unused among the ids 0 to "
                f"{self.max_token_id}",
                param="tokens",
            )
        return ids

    def truncate_texts(self, texts: Sequence[str], max_tokens: int) -> list[TruncatedText]:
        """Cut every text after its first `max_tokens` tokens; invalid Unicode is left for the renderer to refuse."""
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
        """Crop a huge text to a part that determines its first `max_tokens` tokens, or its last ones for "left"."""
        num_tokens = max_tokens + CROP_MARGIN_TOKENS
        num_chars = num_tokens * min(self.max_chars_per_token, MAX_TYPICAL_CHARS_PER_TOKEN)
        while len(text) > num_chars:
            part = text[:num_chars] if truncation_side == "right" else text[-num_chars:]
            # white space and unknown words can have any number of characters in few tokens
            if num_chars >= MAX_SCANNED_CHARS or len(self.encode([part], lower_case=lower_case)[0]) > num_tokens:
                return part
            num_chars = min(4 * num_chars, MAX_SCANNED_CHARS)
        return text

    def _encode(self, texts: Sequence[str]) -> FlatEncoding:
        if self.native.encoder is None:
            return _concat_encodings(self._encode_with_library(texts))
        ids, cu_seqlens, fallback = self.native.encoder.encode(texts)
        if not fallback:
            return FlatEncoding(ids, cu_seqlens)
        library_encodings = _concat_encodings(self._encode_with_library([texts[index] for index in fallback]))
        return FlatEncoding(*insert_encodings(ids, cu_seqlens, fallback, *library_encodings))

    def _encode_with_library(self, texts: Sequence[str]) -> list[TokenIds]:
        short = [text for text in texts if len(text) <= CHUNK_CHARS]
        encodings = iter(self.raw.encode_batch_fast(short, add_special_tokens=False))
        return [
            _encoding_ids(next(encodings)) if len(text) <= CHUNK_CHARS else self._encode_long(text) for text in texts
        ]

    def _encode_long(self, text: str) -> TokenIds:
        return np.concatenate(
            [
                _encoding_ids(self.raw.encode_batch_fast([chunk], add_special_tokens=False)[0])
                for _, chunk in self._iter_chunks(text)
            ]
        )

    def _encode_long_with_offsets(self, text: str) -> Iterator[tuple[int, tokenizers.Encoding]]:
        for start, chunk in self._iter_chunks(text):
            yield start, self.raw.encode_batch([chunk], add_special_tokens=False)[0]

    def _iter_chunks(self, text: str) -> Iterator[tuple[int, str]]:
        """Split a long text into chunks; yields the start of each, and the chunk."""
        start = 0
        while start < len(text):
            end = _find_split_point(text, start + CHUNK_CHARS)
            yield start, text[start:end]
            # SentencePiece prepends a space to every text: then the one at the split is dropped
            start = end if self._has_space_prefixed_tokens or text[end : end + 1] != " " else end + 1


def clean_up_spaces(text: str) -> str:
    """Remove the spaces before punctuation that decoding adds."""
    for old, new in CLEAN_UP_REPLACEMENTS:
        text = text.replace(old, new)
    return text


def to_id_array(token_ids: Sequence[int], param: str = "input") -> np.ndarray[Any, Any]:
    """Return token ids as an array; integers beyond 64 bits stay Python objects."""
    try:
        ids = np.asarray(token_ids)
        if ids.dtype.kind in "fO":  # empty, integers beyond 64 bits, or not integers
            ids = np.asarray(token_ids, dtype=object)
    except (ValueError, OverflowError):  # a list of lists
        ids = np.asarray(None)
    are_large_ints = ids.dtype == object and all(
        isinstance(token, int) and not isinstance(token, bool) for token in ids.flat
    )
    if ids.ndim != 1 or not (are_large_ints or ids.dtype.kind in "iu"):
        raise BadRequest("Token prompt should be a list of integers", param=param)
    return ids


def check_token_ids(ids: np.ndarray[Any, Any], vocab_size: int, param: str = "input") -> None:
    is_invalid = ((ids < 0) | (ids >= vocab_size)).astype(bool)
    if is_invalid.any():
        advice = f"; {TEXTS_ADVICE}" if param == "input" else ""
        raise BadRequest(
            f"Token id {ids[is_invalid][0]} is out of vocabulary: ids go from 0 to {vocab_size - 1}{advice}",
            param=param,
        )


def check_unicode(text: str) -> str:
    """Return the text; raise BadRequest for a lone surrogate, which JSON can escape but UTF-8 cannot encode."""
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
    return FlatEncoding(np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32), to_cu_seqlens(lengths))


def _merge_offset_encodings(
    text: str, normalized_text: str, encodings: Iterable[tuple[int, tokenizers.Encoding]]
) -> OffsetEncoding:
    """Merge the encodings of chunks, with offsets into the original text."""
    ids, offsets = [], []
    for start, encoding in encodings:
        ids.append(_encoding_ids(encoding))
        offsets.append(np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2) + start)
    starts, ends = np.concatenate(offsets).T
    if len(normalized_text) != len(text):  # lowercasing expands a few characters
        lengths = np.fromiter((len(character.lower()) for character in text), dtype=np.int32, count=len(text))
        origins = np.append(np.repeat(np.arange(len(text), dtype=np.int32), lengths), np.int32(len(text)))
        starts, ends = origins[starts], np.where(ends > starts, origins[ends - 1] + 1, origins[starts])
    return OffsetEncoding(np.concatenate(ids), starts, ends)


def _detect_template(encoding: tokenizers.Encoding) -> SpecialTokensTemplate:
    """Derive the special tokens around texts from the encoding of a one-letter probe."""
    sequence_ids, ids = encoding.sequence_ids, np.array(encoding.ids, dtype=np.int32)
    text_indices = [index for index, sequence_id in enumerate(sequence_ids) if sequence_id is not None]
    if not text_indices:  # the vocabulary does not have the probe
        return SpecialTokensTemplate(ids[:0], ids[:0], ids[:0])
    first, last = text_indices[0], text_indices[-1]
    separator = [index for index in range(first, last) if sequence_ids[index] is None]
    return SpecialTokensTemplate(ids[:first], ids[separator], ids[last + 1 :], encoding.type_ids[last])


def _find_split_point(text: str, limit: int) -> int:
    """Return the last position before `limit` of a single space between two alphanumeric characters; else `limit`.

    Normalization may remove other characters, and merge or remove the spaces next to them.
    """
    if limit >= len(text):
        return len(text)
    end = limit
    while (end := text.rfind(" ", limit - SPLIT_SEARCH_CHARS, end)) > 0:
        if text[end - 1].isalnum() and text[end + 1].isalnum():
            return end
    return limit
