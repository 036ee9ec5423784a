"""Units of scheduling and delivery: groups of sequences, slices of them, batches, and their results."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from cenote.errors import PoolingError
from cenote.inputs.tokenized_inputs import BoolArray, Int64Array, TokenizedInputs
from cenote.pooling.pooler import PoolingSpec
from cenote.protocol.scheduling import SchedulingParams
from cenote.utils.lazy_property import lazy_property

Float32Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float32]]"
CallRefs = tuple[Int64Array, Int64Array]  # call ids, 0 where unknown, and the number of an input in each call


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """Inputs of one request with the same pooling specs and adapter, queued together.

    Sorted by length: the scheduler queues runs of equal length.
    """

    inputs: TokenizedInputs
    indices: Int64Array  # of the inputs in their request
    specs: tuple[PoolingSpec, ...]  # almost always one
    receiver: ResultReceiver
    scheduling: SchedulingParams = SchedulingParams()
    adapter: str | None = None
    deadline_at: float = 0.0  # monotonic time after which it does not run; 0.0: none

    @property
    def is_aborted(self) -> bool:
        return self.receiver.is_aborted

    def slice(self, start: int, end: int) -> SequenceGroup:
        """Return consecutive inputs as a group."""
        if end - start == len(self.indices):
            return self
        return replace(self, inputs=self.inputs.slice(start, end), indices=self.indices[start:end])

    def equal_length_runs(self) -> Iterator[tuple[int, int, int]]:
        """Return runs of consecutive inputs of equal length, as (length, start, end)."""
        lengths = self.inputs.lengths
        if len(lengths) == 1:  # fast path for single queries
            return iter([(int(lengths[0]), 0, 1)])
        starts = np.flatnonzero(np.diff(lengths, prepend=-1)).tolist()
        return zip(lengths[starts].tolist(), starts, [*starts[1:], len(lengths)], strict=True)


class GroupSlice(NamedTuple):
    """Consecutive sequences of a group."""

    group: SequenceGroup
    start: int
    end: int

    @property
    def num_seqs(self) -> int:
        return self.end - self.start

    @property
    def indices(self) -> Int64Array:
        indices = self.group.indices
        return indices if self.end - self.start == len(indices) else indices[self.start : self.end]

    def seq_len(self) -> int:
        """Return the length of its sequences, which are equal in slices made by the scheduler."""
        return int(self.group.inputs.lengths[self.start])

    def without_cancelled(self) -> list[GroupSlice]:
        """Return the parts of the slice that somebody waits for."""
        receiver = self.group.receiver
        if not receiver.has_cancelled:
            return [self]
        kept = np.flatnonzero(~receiver.drop_cancelled(self.indices)) + self.start
        runs = np.split(kept, np.flatnonzero(np.diff(kept) > 1) + 1)
        return [GroupSlice(self.group, int(run[0]), int(run[-1]) + 1) for run in runs if len(run)]

    def split_at(self, offset: int) -> tuple[GroupSlice, GroupSlice]:
        middle = self.start + offset
        return GroupSlice(self.group, self.start, middle), GroupSlice(self.group, middle, self.end)


@dataclass(slots=True)
class BatchTimes:
    """Monotonic times of a batch; 0.0 where unknown. Executors set `packed_at`, the engine loop the others."""

    started_at: float = 0.0
    packed_at: float = 0.0  # its arrays are on the device
    computed_at: float = 0.0  # its results are on the host


class ScheduledBatch:
    """The sequences of one forward pass, numbered consecutively over its slices."""

    def __init__(self, slices: Many[GroupSlice], *, is_isolated: bool = False) -> None:
        self.slices = slices
        self.is_isolated = is_isolated  # nothing else may be on the device meanwhile
        self.slot = 0  # where the engine loop records it
        self.prepared: object = None  # what `Executor.is_prepared` has found for `Executor.start`
        self.times = BatchTimes()
        self.num_seqs = sum([end - start for _, start, end in slices])

    def __len__(self) -> int:
        return self.num_seqs

    @lazy_property
    def inputs(self) -> TokenizedInputs:
        return TokenizedInputs.concat([item.group.inputs.slice(item.start, item.end) for item in self.slices])

    @lazy_property
    def indices(self) -> Int64Array:
        indices = [item.indices for item in self.slices]
        return indices[0] if len(indices) == 1 else np.concatenate(indices)

    @property
    def num_tokens(self) -> int:
        return len(self.inputs.token_ids)

    def get_call_refs(self) -> CallRefs:
        refs = [item.group.receiver.get_call_refs(item.indices) for item in self.slices]
        if len(refs) == 1:
            return refs[0]
        return np.concatenate([ids for ids, _ in refs]), np.concatenate([numbers for _, numbers in refs])

    @property
    def specs(self) -> list[tuple[PoolingSpec, ...]]:
        """The specs of every sequence."""
        return [specs for item in self.slices for specs in [item.group.specs] * item.num_seqs]

    @property
    def lora_names(self) -> tuple[str | None, ...] | None:
        """The adapter of every sequence; None if no sequence has one."""
        if all(item.group.adapter is None for item in self.slices):
            return None
        return tuple(name for item in self.slices for name in [item.group.adapter] * item.num_seqs)

    def select(self, spec: PoolingSpec) -> ScheduledBatch:
        """Return the sequences with this spec."""
        return ScheduledBatch([item for item in self.slices if spec in item.group.specs])

    def split_half(self) -> tuple[ScheduledBatch, ScheduledBatch]:
        first, rest, num_left = list[GroupSlice](), list[GroupSlice](), self.num_seqs // 2
        for item in self.slices:
            before, after = item.split_at(min(num_left, item.num_seqs))
            num_left -= before.num_seqs
            first += [before] if before.num_seqs else []
            rest += [after] if after.num_seqs else []
        return ScheduledBatch(first), ScheduledBatch(rest)

    def split_single(self) -> Iterator[ScheduledBatch]:
        """Yield a batch for every sequence."""
        for group, start, end in self.slices:
            for offset in range(start, end):
                yield ScheduledBatch([GroupSlice(group, offset, offset + 1)])


class RaggedRows(NamedTuple):
    """Results of sequences, concatenated: one row per sequence, or a variable number of consecutive rows."""

    values: Float32Array
    offsets: Many[int] | None = None  # [num_seqs + 1], first row of each sequence, and the end; None: one row each
    shapes: Many[tuple[int, ...]] | None = None  # [num_seqs], of results of any shape, stored flattened

    @classmethod
    def from_counts(cls, values: Float32Array, counts: Many[int] | None) -> RaggedRows:
        return cls(values, None if counts is None else list(accumulate(counts, initial=0)))

    @classmethod
    def from_arrays(cls, arrays: Many[Float32Array]) -> RaggedRows:
        offsets = list(accumulate([array.size for array in arrays], initial=0))
        return cls(np.concatenate([array.ravel() for array in arrays]), offsets, [array.shape for array in arrays])

    def __len__(self) -> int:
        return self.values.shape[0] if self.offsets is None else len(self.offsets) - 1

    def unbind(self) -> list[Float32Array]:
        """Return one array per sequence, a view: thousands of small copies would fragment the heap."""
        if self.offsets is None:
            return [self.values[index, ...] for index in range(len(self.values))]
        arrays = [self.values[start:end] for start, end in pairwise(self.offsets)]
        if self.shapes is None:
            return arrays
        return [array.reshape(shape) for array, shape in zip(arrays, self.shapes, strict=True)]

    def select(self, indices: Many[int]) -> RaggedRows:
        """Return copies of results: callers may write into theirs."""
        if self.offsets is None:
            return RaggedRows(self.values[indices])
        arrays = self.unbind()
        selected = [arrays[index] for index in indices]
        return RaggedRows.from_counts(np.concatenate(selected), [len(array) for array in selected])

    def slice(self, start: int, end: int) -> RaggedRows:
        if self.offsets is None:
            return RaggedRows(self.values[start:end])
        return RaggedRows(
            self.values, self.offsets[start : end + 1], None if self.shapes is None else self.shapes[start:end]
        )


class GroupResult(NamedTuple):
    """Inputs of one request and their results."""

    inputs: TokenizedInputs
    indices: Int64Array
    rows: tuple[RaggedRows, ...]  # one for each spec
    times: BatchTimes | None = None  # of the batch that computed them; None: from the cache

    def unbind(self) -> list[list[Float32Array]]:
        """Return for each spec one array per input."""
        return [rows.unbind() for rows in self.rows]

    @property
    def vector_size(self) -> int | None:
        """Size of the results if they are single vectors of equal size, else None."""
        first = self.rows[0]
        return (
            first.values.shape[1] if len(self.rows) == 1 and first.offsets is None and first.values.ndim == 2 else None
        )

    @classmethod
    def concat_sorted(cls, results: Many[GroupResult]) -> GroupResult:
        """Concatenate results that have a `vector_size`, sorted by input index."""
        indices = np.concatenate([result.indices for result in results])
        order = np.argsort(indices)
        values = [result.rows[0].values for result in results]
        rows = np.concatenate(values) if len(values) > 1 else values[0]
        rows = rows if np.array_equal(order, np.arange(len(order))) else rows[order]
        inputs = TokenizedInputs.concat([result.inputs for result in results])
        return cls(inputs.select(order), indices[order], (RaggedRows(rows),))

    def select(self, positions: Int64Array) -> GroupResult:
        rows = tuple(spec_rows.select(positions.tolist()) for spec_rows in self.rows)
        return GroupResult(self.inputs.select(positions), self.indices[positions], rows, self.times)

    def slice(self, start: int, end: int) -> GroupResult:
        rows = tuple(spec_rows.slice(start, end) for spec_rows in self.rows)
        return GroupResult(self.inputs.slice(start, end), self.indices[start:end], rows, self.times)


class ResultReceiver(Protocol):
    """Receives the results of a group, in the engine thread."""

    @property
    def is_aborted(self) -> bool: ...

    @property
    def has_cancelled(self) -> bool:
        """Whether some of its inputs may have been cancelled, while it is not aborted."""
        ...

    def drop_cancelled(self, indices: Int64Array) -> BoolArray:
        """Say which inputs, about to run, nobody waits for; called only if `has_cancelled`."""
        ...

    def mark_started(self, now: float) -> None:
        """Called when a batch with some of its sequences starts."""
        ...

    def receive(self, results: Many[GroupResult]) -> None: ...

    def fail(self, index: int, error: PoolingError) -> None: ...

    def expire(self, now: float) -> None:
        """Called when the deadline has passed before all of its sequences have run."""
        ...

    @property
    def isolated_indices(self) -> Collection[int]:
        """The inputs that may crash the process: each runs in a batch of its own."""
        ...

    def get_call_refs(self, indices: Int64Array) -> CallRefs:
        """Return the calls of front-ends that wait for inputs, and the numbers of the inputs in their calls."""
        ...
