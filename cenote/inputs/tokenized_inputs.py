"""Rendered inputs laid end to end: an array for each thing that is known of them, not an object for each input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from cenote.errors import PoolingError
from cenote.inputs.tokenizer import TokenIds
from cenote.protocol.images import InputImages

Int64Array: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
BoolArray: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"

# what is known of each input beside its tokens; the words are those of Rendered
METADATA_DTYPE = np.dtype(
    [
        (name, np.int64)
        for name in ("length", "type1_start", "num_input_tokens", "num_unpooled", "attended_len", "is_exact")
    ]
)


@dataclass(slots=True)
class TokenizedInput:
    """One input, as the model will read it."""

    token_ids: TokenIds
    type1_start: int  # tokens from here on are of type 1; the length when none is
    num_input_tokens: int  # before truncation
    num_unpooled: int = 0  # leading tokens that pooling leaves out
    inputs_embeds: Any = (
        None  # [tokens, hidden], and all ids are 0; or tensors by their names, for which one token stands
    )
    is_input_count_exact: bool = True  # False: a huge text was cut before all of its tokens were counted
    attended_len: int | None = None  # leading tokens that others see; all when unset
    row_mask: BoolArray | None = None  # tokens with a row in a token-wise answer; all when unset
    images: InputImages | None = None  # its images


@dataclass(frozen=True)
class TokenizedInputs:
    """Many inputs, as the model will read them."""

    token_ids: TokenIds  # [tokens]
    metadata: np.ndarray[Any, Any]  # [size], of the kind FACTS
    row_mask: BoolArray | None = None  # [tokens]; None means all
    inputs_embeds: Sequence[Any] | None = None  # [size], None for inputs without; None means that no input has any
    images: Sequence[InputImages | None] | None = None  # [size], in the same way

    @classmethod
    def from_ids(
        cls, token_ids: TokenIds, lengths: Int64Array, num_input_tokens: Int64Array, num_unpooled: Any = 0
    ) -> TokenizedInputs:
        """Inputs of which nothing special is to be said."""
        facts = np.empty(len(lengths), dtype=METADATA_DTYPE)
        facts["length"] = facts["type1_start"] = facts["attended_len"] = lengths
        facts["num_input_tokens"] = num_input_tokens
        facts["num_unpooled"] = num_unpooled
        facts["is_exact"] = 1
        return cls(token_ids, facts)

    @classmethod
    def from_list(cls, inputs: Sequence[TokenizedInput]) -> TokenizedInputs:
        if not inputs:
            return cls(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=METADATA_DTYPE))
        kept: BoolArray | None = None
        if any(item.row_mask is not None for item in inputs):
            kept = np.concatenate(
                [_full_mask(item.token_ids) if item.row_mask is None else item.row_mask for item in inputs]
            )
        token_ids = np.concatenate([item.token_ids for item in inputs])
        facts = np.array([_metadata_row(item) for item in inputs], dtype=METADATA_DTYPE)
        embeds, sights = (
            _none_if_all_none([item.inputs_embeds for item in inputs]),
            _none_if_all_none([item.images for item in inputs]),
        )
        return cls(token_ids, facts, kept, embeds, sights)

    @classmethod
    def concat(cls, inputs: Sequence[TokenizedInputs]) -> TokenizedInputs:
        if len(inputs) == 1:
            return inputs[0]
        kept: BoolArray | None = None
        if any(strip.row_mask is not None for strip in inputs):
            kept = np.concatenate(
                [_full_mask(strip.token_ids) if strip.row_mask is None else strip.row_mask for strip in inputs]
            )
        embeds, sights = (
            _concat_optional([getattr(strip, name) for strip in inputs], inputs) for name in ("inputs_embeds", "images")
        )
        # as plain numbers, since numpy ponders over the types of records for longer than it copies them
        numbers = np.concatenate([strip.metadata.view(np.int64) for strip in inputs])
        return cls(
            np.concatenate([strip.token_ids for strip in inputs]), numbers.view(METADATA_DTYPE), kept, embeds, sights
        )

    def __len__(self) -> int:
        return len(self.metadata)

    @property
    def lengths(self) -> Int64Array:
        lengths: Int64Array = self.metadata["length"]
        return lengths

    @cached_property
    def cu_seqlens(self) -> Int64Array:
        """[size + 1], where each input starts, and the end."""
        offsets = np.zeros(len(self.metadata) + 1, dtype=np.int64)
        np.cumsum(self.metadata["length"], out=offsets[1:])
        return offsets

    @cached_property
    def is_plain(self) -> bool:
        """Whether all inputs are one text each, of which the model sees and pools every token."""
        facts, lengths = self.metadata, self.lengths
        alike = (facts["type1_start"] >= lengths) & (facts["attended_len"] >= lengths) & (facts["num_unpooled"] == 0)
        return bool(alike.all())

    @property
    def num_truncated(self) -> int:
        """Inputs of which only a part was read."""
        facts = self.metadata
        return int(np.count_nonzero((facts["length"] < facts["num_input_tokens"]) | (facts["is_exact"] == 0)))

    def slice(self, start: int, end: int) -> TokenizedInputs:
        """Neighbours, as a view."""
        if end - start == len(self):
            return self
        first, last = int(self.cu_seqlens[start]), int(self.cu_seqlens[end])
        return TokenizedInputs(
            self.token_ids[first:last],
            self.metadata[start:end],
            None if self.row_mask is None else self.row_mask[first:last],
            None if self.inputs_embeds is None else _none_if_all_none(self.inputs_embeds[start:end]),
            None if self.images is None else _none_if_all_none(self.images[start:end]),
        )

    def select(self, indices: Int64Array) -> TokenizedInputs:
        """Those at some places, in that order."""
        if len(indices) == len(self) and (indices == np.arange(len(self))).all():
            return self
        starts, lengths = self.cu_seqlens[indices], self.lengths[indices]
        return TokenizedInputs(
            gather_spans(self.token_ids, starts, lengths),
            self.metadata.take(indices),
            None if self.row_mask is None else gather_spans(self.row_mask, starts, lengths),
            None if self.inputs_embeds is None else _none_if_all_none([self.inputs_embeds[place] for place in indices]),
            None if self.images is None else _none_if_all_none([self.images[place] for place in indices]),
        )

    def get(self, index: int) -> TokenizedInput:
        """One of them by itself."""
        one = self.slice(index, index + 1)
        length, second_start, num_input_tokens, skip, attended, exact = one.metadata[0].item()
        return TokenizedInput(
            one.token_ids,
            second_start,
            num_input_tokens,
            skip,
            None if one.inputs_embeds is None else one.inputs_embeds[0],
            bool(exact),
            attended if attended < length else None,
            one.row_mask,
            None if one.images is None else one.images[0],
        )


@dataclass(frozen=True, slots=True)
class RenderResult(Sequence[TokenizedInput | PoolingError]):
    """Inputs that were rendered together: those that can be read, and the errors of the others."""

    inputs: TokenizedInputs
    indices: Int64Array  # of what is in the strip, among all
    errors: Mapping[int, PoolingError]  # by their places

    @classmethod
    def from_list(cls, results: Sequence[TokenizedInput | PoolingError]) -> RenderResult:
        errors = {place: item for place, item in enumerate(results) if isinstance(item, PoolingError)}
        places = np.delete(np.arange(len(results)), list(errors)) if errors else np.arange(len(results))
        return cls(
            TokenizedInputs.from_list([item for item in results if isinstance(item, TokenizedInput)]), places, errors
        )

    def __len__(self) -> int:
        return len(self.indices) + len(self.errors)

    def slice(self, start: int, end: int) -> RenderResult:
        """Of some neighbours."""
        if end - start == len(self):
            return self
        first, last = np.searchsorted(self.indices, (start, end)).tolist()
        errors = {place - start: error for place, error in self.errors.items() if start <= place < end}
        return RenderResult(self.inputs.slice(first, last), self.indices[first:last] - start, errors)

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.errors.get(index) or self.inputs.get(int(np.searchsorted(self.indices, index)))


def _metadata_row(item: TokenizedInput) -> tuple[int, ...]:
    length = len(item.token_ids)
    attended = length if item.attended_len is None else item.attended_len
    return length, item.type1_start, item.num_input_tokens, item.num_unpooled, attended, item.is_input_count_exact


def _full_mask(token_ids: TokenIds) -> BoolArray:
    return np.ones(len(token_ids), dtype=bool)


def _none_if_all_none(items: Sequence[Any]) -> Sequence[Any] | None:
    return None if all(item is None for item in items) else items


def _concat_optional(lists: Sequence[Sequence[Any] | None], inputs: Sequence[TokenizedInputs]) -> Sequence[Any] | None:
    if all(items is None for items in lists):
        return None
    return [item for items, strip in zip(lists, inputs, strict=True) for item in (items or [None] * len(strip))]


def gather_spans(values: np.ndarray[Any, Any], starts: Int64Array, lengths: Int64Array) -> np.ndarray[Any, Any]:
    """Pieces of an array, laid end to end."""
    ends = np.cumsum(lengths)
    # what follows in a piece follows in the result: only the distance between the two changes, from piece to piece
    places = np.arange(ends[-1] if len(ends) else 0)
    places += np.repeat(starts - ends + lengths, lengths)
    return values.take(places)
