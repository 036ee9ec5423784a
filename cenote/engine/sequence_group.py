"""Inputs of a request that ask the same: what waits, what a batch is made of, and what its answers come back as."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from cenote.errors import PoolingError
from cenote.inputs.tokenized_inputs import Int64Array, TokenizedInputs
from cenote.pooling.pooler import PoolingSpec


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """Neighbours of equal length make the scheduler's work light, so whoever makes a lot sorts it by length."""

    inputs: TokenizedInputs
    indices: Int64Array  # which inputs of their request these are
    specs: tuple[PoolingSpec, ...]  # nearly always one
    receiver: ResultReceiver
    priority: int = 0
    adapter: str | None = None
    query_embeddings: Many[Tensor] | None = None  # for each input the rows of a query to compare it with

    @property
    def is_aborted(self) -> bool:
        return self.receiver.is_aborted

    def slice(self, start: int, end: int) -> SequenceGroup:
        """Neighbours, as a lot of their own."""
        if end - start == len(self.indices):
            return self
        against = None if self.query_embeddings is None else self.query_embeddings[start:end]
        return replace(
            self, inputs=self.inputs.slice(start, end), indices=self.indices[start:end], query_embeddings=against
        )

    def equal_length_runs(self) -> Iterator[tuple[int, int, int]]:
        """The lengths of neighbours that are equally long, and where these begin and end."""
        lengths = self.inputs.lengths
        if len(lengths) == 1:  # as it is for every single query
            return iter([(int(lengths[0]), 0, 1)])
        starts = np.flatnonzero(np.diff(lengths, prepend=-1)).tolist()
        return zip(lengths[starts].tolist(), starts, [*starts[1:], len(lengths)], strict=True)


class GroupSlice(NamedTuple):
    """Neighbours in a lot."""

    group: SequenceGroup
    start: int
    end: int

    @property
    def num_seqs(self) -> int:
        return self.end - self.start

    @property
    def indices(self) -> Int64Array:
        return self.group.indices[self.start : self.end]

    def seq_len(self) -> int:
        """Of its first sequence; the scheduler makes parts of equal lengths."""
        return int(self.group.inputs.lengths[self.start])

    def split_at(self, offset: int) -> tuple[GroupSlice, GroupSlice]:
        middle = self.start + offset
        return GroupSlice(self.group, self.start, middle), GroupSlice(self.group, middle, self.end)


class ScheduledBatch:
    """What runs at once. Its sequences have numbers, part after part."""

    def __init__(self, slices: Many[GroupSlice]) -> None:
        self.slices = slices
        self.num_seqs = sum(part.end - part.start for part in slices)

    def __len__(self) -> int:
        return self.num_seqs

    @cached_property
    def inputs(self) -> TokenizedInputs:
        return TokenizedInputs.concat([part.group.inputs.slice(part.start, part.end) for part in self.slices])

    @cached_property
    def indices(self) -> Int64Array:
        several = [part.indices for part in self.slices]
        return several[0] if len(several) == 1 else np.concatenate(several)

    @property
    def num_tokens(self) -> int:
        return len(self.inputs.token_ids)

    @property
    def specs(self) -> list[tuple[PoolingSpec, ...]]:
        """For every sequence."""
        return [asks for part in self.slices for asks in [part.group.specs] * part.num_seqs]

    @property
    def query_embeddings(self) -> list[Tensor | None]:
        """For every sequence the rows to compare it with."""
        queries: list[Tensor | None] = []
        for lot, start, end in self.slices:
            queries += [None] * (end - start) if lot.query_embeddings is None else lot.query_embeddings[start:end]
        return queries

    @property
    def lora_names(self) -> tuple[str | None, ...] | None:
        """For every sequence; None where none has any."""
        if all(part.group.adapter is None for part in self.slices):
            return None
        return tuple(name for part in self.slices for name in [part.group.adapter] * part.num_seqs)

    def select(self, spec: PoolingSpec) -> ScheduledBatch:
        """Those of which this is asked."""
        return ScheduledBatch([part for part in self.slices if spec in part.group.specs])

    def split_half(self) -> tuple[ScheduledBatch, ScheduledBatch]:
        first, rest, room = list[GroupSlice](), list[GroupSlice](), self.num_seqs // 2
        for part in self.slices:
            before, after = part.split_at(min(room, part.num_seqs))
            room -= before.num_seqs
            first += [before] if before.num_seqs else []
            rest += [after] if after.num_seqs else []
        return ScheduledBatch(first), ScheduledBatch(rest)

    def split_single(self) -> Iterator[ScheduledBatch]:
        """Every sequence by itself."""
        for lot, start, end in self.slices:
            for place in range(start, end):
                yield ScheduledBatch([GroupSlice(lot, place, place + 1)])


class RaggedRows(NamedTuple):
    """Answers on the host: one row for each sequence, or any number of neighbouring rows."""

    values: Tensor
    offsets: Many[int] | None = None  # [size + 1], where the rows of each begin, and the end
    shapes: Many[tuple[int, ...]] | None = None  # [size], of answers of any shape, whose rows are single numbers

    @classmethod
    def from_counts(cls, values: Tensor, counts: Many[int] | None) -> RaggedRows:
        return cls(values, None if counts is None else list(accumulate(counts, initial=0)))

    @classmethod
    def from_tensors(cls, tensors: Many[Tensor]) -> RaggedRows:
        flat = [answer.flatten() for answer in tensors]
        offsets = list(accumulate(map(len, flat), initial=0))
        return cls(torch.cat(flat), offsets, [tuple(answer.shape) for answer in tensors])

    def __len__(self) -> int:
        return self.values.shape[0] if self.offsets is None else len(self.offsets) - 1

    def unbind(self) -> Many[Tensor]:
        # views of their batch: thousands of small copies would scatter over the heap and bloat it
        if self.offsets is None:
            return self.values.unbind(0)
        counts = [end - start for start, end in pairwise(self.offsets)]
        pieces = torch.split(self.values[self.offsets[0] : self.offsets[-1]], counts)
        if self.shapes is None:
            return pieces
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def slice(self, start: int, end: int) -> RaggedRows:
        if self.offsets is None:
            return RaggedRows(self.values[start:end])
        return RaggedRows(
            self.values, self.offsets[start : end + 1], None if self.shapes is None else self.shapes[start:end]
        )


class GroupResult(NamedTuple):
    """Inputs of one request, and the answers to them."""

    inputs: TokenizedInputs
    indices: Int64Array
    rows: tuple[RaggedRows, ...]  # one for each thing that was asked

    def unbind(self) -> list[Many[Tensor]]:
        """For each thing that was asked, a tensor for every input."""
        return [rows.unbind() for rows in self.rows]

    @property
    def vector_size(self) -> int | None:
        """The size of the vectors that the answers are; None where they are anything else."""
        first = self.rows[0]
        return (
            first.values.shape[1] if len(self.rows) == 1 and first.offsets is None and first.values.ndim == 2 else None
        )

    @classmethod
    def concat_sorted(cls, results: Many[GroupResult]) -> GroupResult:
        """Vectors of one size and what they answer, in the order of the inputs."""
        indices = np.concatenate([each.indices for each in results])
        order = np.argsort(indices)
        rows = torch.cat([each.rows[0].values for each in results]) if len(results) > 1 else results[0].rows[0].values
        rows = rows if np.array_equal(order, np.arange(len(order))) else rows[torch.from_numpy(order)]
        return cls(
            TokenizedInputs.concat([each.inputs for each in results]).select(order), indices[order], (RaggedRows(rows),)
        )

    def slice(self, start: int, end: int) -> GroupResult:
        rows = tuple(each.slice(start, end) for each in self.rows)
        return GroupResult(self.inputs.slice(start, end), self.indices[start:end], rows)


class ResultReceiver(Protocol):
    """Whoever waits for the answers to a lot."""

    @property
    def is_aborted(self) -> bool: ...

    def mark_started(self, now: float) -> None:
        """A batch that holds some of its sequences begins."""
        ...

    def receive(self, results: Many[GroupResult]) -> None: ...

    def fail(self, index: int, error: PoolingError) -> None: ...
