"""Tokenized inputs in columnar form: concatenated token ids and one metadata record per input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np

from cenote.errors import PoolingError
from cenote.inputs.tokenizer import TokenIds
from cenote.protocol.images import InputImages
from cenote.protocol.requests import Operand
from cenote.utils.lazy_property import lazy_property

Int64Array: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
BoolArray: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"

# metadata of an input, with the field names of TokenizedInput
METADATA_DTYPE = np.dtype(
    [
        (name, np.int64)
        for name in ("length", "type1_start", "num_input_tokens", "num_unpooled", "attended_len", "is_exact")
    ]
)
ONLY_INDEX: Int64Array = np.arange(1)  # of the results of a single input; shared by all of them
ONLY_INDEX.setflags(write=False)
NO_IDS: TokenIds = np.zeros(0, dtype=np.int32)


class TokenizedInput(msgspec.Struct):
    """One tokenized input."""

    token_ids: TokenIds
    type1_start: int  # index of the first token of type 1; the length if there is none
    num_input_tokens: int  # before truncation
    num_unpooled: int = 0  # leading tokens that are not pooled
    # [tokens, hidden], with all ids 0; or named tensors of a tensor model, with a single token id
    inputs_embeds: Any = None
    is_input_count_exact: bool = True  # False: a huge text was cropped before tokenization
    attended_len: int | None = None  # leading tokens that others attend to; None: all
    row_mask: BoolArray | None = None  # tokens with a row in token-wise outputs; None: all
    images: InputImages | None = None

    def to_inputs(self) -> TokenizedInputs:
        """Return it as the only input."""
        metadata = np.array([_metadata_row(self)], dtype=METADATA_DTYPE)
        embeds = None if self.inputs_embeds is None else [self.inputs_embeds]
        return TokenizedInputs(
            self.token_ids, metadata, self.row_mask, embeds, None if self.images is None else [self.images]
        )


@dataclass(frozen=True)
class TokenizedInputs:
    """Many tokenized inputs, concatenated."""

    token_ids: TokenIds  # [tokens]
    metadata: np.ndarray[Any, Any]  # [size], of dtype METADATA_DTYPE
    row_mask: BoolArray | None = None  # [tokens]; None: all
    inputs_embeds: Sequence[Any] | None = None  # [size], None for inputs without; None: no input has any
    images: Sequence[InputImages | None] | None = None  # [size], likewise
    operands: Sequence[Operand | None] | None = None  # [size], likewise; inputs that share one share the object

    @classmethod
    def from_ids(
        cls, token_ids: TokenIds, lengths: Int64Array, num_input_tokens: Int64Array, num_unpooled: Any = 0
    ) -> TokenizedInputs:
        """Make inputs of one token type whose tokens are all attended to, with exact token counts."""
        metadata = np.empty(len(lengths), dtype=METADATA_DTYPE)
        metadata["length"] = metadata["type1_start"] = metadata["attended_len"] = lengths
        metadata["num_input_tokens"] = num_input_tokens
        metadata["num_unpooled"] = num_unpooled
        metadata["is_exact"] = 1
        return cls(token_ids, metadata)

    @classmethod
    def from_list(cls, inputs: Sequence[TokenizedInput]) -> TokenizedInputs:
        if not inputs:
            return cls(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=METADATA_DTYPE))
        if len(inputs) == 1:
            return inputs[0].to_inputs()
        row_mask: BoolArray | None = None
        if any(item.row_mask is not None for item in inputs):
            row_mask = np.concatenate(
                [_full_mask(item.token_ids) if item.row_mask is None else item.row_mask for item in inputs]
            )
        token_ids = np.concatenate([item.token_ids for item in inputs])
        metadata = np.array([_metadata_row(item) for item in inputs], dtype=METADATA_DTYPE)
        inputs_embeds = _none_if_all_none([item.inputs_embeds for item in inputs])
        images = _none_if_all_none([item.images for item in inputs])
        return cls(token_ids, metadata, row_mask, inputs_embeds, images)

    @classmethod
    def concat(cls, inputs: Sequence[TokenizedInputs]) -> TokenizedInputs:
        if len(inputs) == 1:
            return inputs[0]
        row_mask: BoolArray | None = None
        if any(part.row_mask is not None for part in inputs):
            row_mask = np.concatenate(
                [_full_mask(part.token_ids) if part.row_mask is None else part.row_mask for part in inputs]
            )
        inputs_embeds = _concat_optional([part.inputs_embeds for part in inputs], inputs)
        images = _concat_optional([part.images for part in inputs], inputs)
        operands = _concat_optional([part.operands for part in inputs], inputs)
        # as int64, since numpy takes longer to compare record dtypes than to copy the records
        values = np.concatenate([part.metadata.view(np.int64) for part in inputs])
        token_ids = np.concatenate([part.token_ids for part in inputs])
        return cls(token_ids, values.view(METADATA_DTYPE), row_mask, inputs_embeds, images, operands)

    def __len__(self) -> int:
        return len(self.metadata)

    @property
    def lengths(self) -> Int64Array:
        lengths: Int64Array = self.metadata["length"]
        return lengths

    @property
    def seq_lens(self) -> tuple[int, ...]:
        """The lengths as integers."""
        return (self.only_record[0],) if len(self) == 1 else tuple(self.lengths.tolist())

    @lazy_property
    def only_record(self) -> tuple[int, ...]:
        """The metadata of the only input; kept, so that nothing may write to `metadata` afterwards."""
        (record,) = self.metadata.tolist()
        return tuple(record)

    @lazy_property
    def cu_seqlens(self) -> Int64Array:
        """[size + 1]: the start of each input in `token_ids`, and the total length."""
        if len(self) == 1:
            return np.array((0, self.only_record[0]))
        offsets = np.zeros(len(self.metadata) + 1, dtype=np.int64)
        self.metadata["length"].cumsum(out=offsets[1:])
        return offsets

    @lazy_property
    def is_plain(self) -> bool:
        """Whether all inputs have one token type and all their tokens are attended to and pooled."""
        metadata, lengths = self.metadata, self.lengths
        if len(metadata) == 1:  # a single query: one record is read in less time than one comparison takes
            length, type1_start, _, num_unpooled, attended_len, _ = self.only_record
            return bool(type1_start >= length and attended_len >= length and not num_unpooled)
        has_one_type = metadata["type1_start"] >= lengths
        is_attended = metadata["attended_len"] >= lengths
        return bool((has_one_type & is_attended & (metadata["num_unpooled"] == 0)).all())

    @property
    def num_truncated(self) -> int:
        """Number of inputs that were truncated."""
        if len(self) == 1:
            length, _, num_input_tokens, _, _, is_exact = self.only_record
            return int(length < num_input_tokens or not is_exact)
        metadata = self.metadata
        return int(np.count_nonzero((metadata["length"] < metadata["num_input_tokens"]) | (metadata["is_exact"] == 0)))

    def slice(self, start: int, end: int) -> TokenizedInputs:
        """Return the inputs `start` to `end`, as views."""
        if end - start == len(self):
            return self
        first, last = int(self.cu_seqlens[start]), int(self.cu_seqlens[end])
        return TokenizedInputs(
            self.token_ids[first:last],
            self.metadata[start:end],
            None if self.row_mask is None else self.row_mask[first:last],
            None if self.inputs_embeds is None else _none_if_all_none(self.inputs_embeds[start:end]),
            None if self.images is None else _none_if_all_none(self.images[start:end]),
            None if self.operands is None else _none_if_all_none(self.operands[start:end]),
        )

    def select(self, indices: Int64Array) -> TokenizedInputs:
        """Return the inputs at the given indices, in that order."""
        if len(indices) == len(self) and (len(self) == 1 or (indices == np.arange(len(self))).all()):
            return self
        starts, lengths = self.cu_seqlens[indices], self.lengths[indices]
        return TokenizedInputs(
            gather_spans(self.token_ids, starts, lengths),
            self.metadata.take(indices),
            None if self.row_mask is None else gather_spans(self.row_mask, starts, lengths),
            None if self.inputs_embeds is None else _none_if_all_none([self.inputs_embeds[index] for index in indices]),
            None if self.images is None else _none_if_all_none([self.images[index] for index in indices]),
            None if self.operands is None else _none_if_all_none([self.operands[index] for index in indices]),
        )

    def with_operands(self, operands: Sequence[Operand | None]) -> TokenizedInputs:
        """Return the inputs with what their results are computed from besides their tokens."""
        return TokenizedInputs(self.token_ids, self.metadata, self.row_mask, self.inputs_embeds, self.images, operands)

    def get(self, index: int) -> TokenizedInput:
        """Return one input."""
        one = self.slice(index, index + 1)
        length, type1_start, num_input_tokens, num_unpooled, attended_len, is_exact = one.only_record
        return TokenizedInput(
            one.token_ids,
            type1_start,
            num_input_tokens,
            num_unpooled,
            None if one.inputs_embeds is None else one.inputs_embeds[0],
            bool(is_exact),
            attended_len if attended_len < length else None,
            one.row_mask,
            None if one.images is None else one.images[0],
        )


class OneInput(TokenizedInputs):
    """One input and its metadata; a query alone waits for no array that it does not need."""

    def __init__(self, token_ids: TokenIds, record: tuple[int, ...]) -> None:
        self.__dict__.update(token_ids=token_ids, only_record=record)

    @lazy_property
    def metadata(self) -> np.ndarray[Any, Any]:
        return np.array(self.only_record).view(METADATA_DTYPE)  # a third of the time of an array of records

    def __len__(self) -> int:
        return 1


class PlainInput(OneInput):
    """One input that is not truncated, of one token type."""

    is_plain = True
    num_truncated = 0

    def __init__(self, token_ids: TokenIds) -> None:
        length = len(token_ids)
        super().__init__(token_ids, (length, length, length, 0, length, 1))


@dataclass(slots=True)
class RenderResult(Sequence[TokenizedInput | PoolingError]):
    """Results of one render call: tokenized inputs, and the errors of the inputs that failed."""

    inputs: TokenizedInputs
    indices: Int64Array  # positions of `inputs` among all inputs of the call, ascending
    errors: Mapping[int, PoolingError]  # by position among all inputs

    @classmethod
    def from_list(cls, results: Sequence[TokenizedInput | PoolingError]) -> RenderResult:
        if len(results) == 1 and isinstance(results[0], TokenizedInput):
            return cls(results[0].to_inputs(), ONLY_INDEX, {})
        errors = {index: item for index, item in enumerate(results) if isinstance(item, PoolingError)}
        indices = np.delete(np.arange(len(results)), list(errors)) if errors else np.arange(len(results))
        return cls(
            TokenizedInputs.from_list([item for item in results if isinstance(item, TokenizedInput)]), indices, errors
        )

    @classmethod
    def concat(cls, parts: Sequence[RenderResult]) -> RenderResult:
        """Return the results of one part after the other."""
        starts = np.cumsum([0, *map(len, parts)]).tolist()[:-1]
        errors = {
            start + index: error
            for start, part in zip(starts, parts, strict=True)
            for index, error in part.errors.items()
        }
        indices = np.concatenate([part.indices + start for start, part in zip(starts, parts, strict=True)])
        inputs = TokenizedInputs.concat([part.inputs for part in parts if len(part.inputs)] or [parts[0].inputs])
        return cls(inputs, indices, errors)

    def set_operands(self, operands: Sequence[Operand | None] | None) -> None:
        """Set those of the inputs without errors; `operands`: of all inputs of the call."""
        if operands is not None:
            self.inputs = self.inputs.with_operands([operands[index] for index in self.indices.tolist()])

    def __len__(self) -> int:
        return len(self.indices) + len(self.errors)

    def slice(self, start: int, end: int) -> RenderResult:
        """Return the results `start` to `end`."""
        if end - start == len(self):
            return self
        first, last = np.searchsorted(self.indices, (start, end)).tolist()
        errors = {index - start: error for index, error in self.errors.items() if start <= index < end}
        return RenderResult(self.inputs.slice(first, last), self.indices[first:last] - start, errors)

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.errors.get(index) or self.inputs.get(int(np.searchsorted(self.indices, index)))


def _metadata_row(item: TokenizedInput) -> tuple[int, ...]:
    length = len(item.token_ids)
    attended_len = length if item.attended_len is None else item.attended_len
    return length, item.type1_start, item.num_input_tokens, item.num_unpooled, attended_len, item.is_input_count_exact


def _full_mask(token_ids: TokenIds) -> BoolArray:
    return np.ones(len(token_ids), dtype=bool)


def _none_if_all_none(items: Sequence[Any]) -> Sequence[Any] | None:
    return None if all(item is None for item in items) else items


def _concat_optional(lists: Sequence[Sequence[Any] | None], inputs: Sequence[TokenizedInputs]) -> Sequence[Any] | None:
    if all(items is None for items in lists):
        return None
    return [item for items, part in zip(lists, inputs, strict=True) for item in (items or [None] * len(part))]


def gather_spans(values: np.ndarray[Any, Any], starts: Int64Array, lengths: Int64Array) -> np.ndarray[Any, Any]:
    """Concatenate the ranges `starts[i] : starts[i] + lengths[i]` of an array."""
    ends = np.cumsum(lengths)
    # within a range, source and result index advance together: their difference is constant per range
    indices = np.arange(ends[-1] if len(ends) else 0)
    indices += np.repeat(starts - ends + lengths, lengths)
    return values.take(indices)
