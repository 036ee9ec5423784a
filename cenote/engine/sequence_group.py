"""Units of scheduling and delivery: groups of sequences, slices of them, and batches."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from cenote.engine.result_rows import BatchTimes, GroupResult
from cenote.errors import PoolingError
from cenote.inputs.tokenized_inputs import BoolArray, Int64Array, TokenizedInputs
from cenote.pooling.pooler import PoolingSpec
from cenote.protocol.scheduling import SchedulingParams
from cenote.utils.lazy_property import lazy_property

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
