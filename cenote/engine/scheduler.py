"""Which waiting sequences run next; knows no tensors and no threads."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple, Protocol


class Schedulable(Protocol):
    """What the scheduler needs to know of a lot."""

    priority: int

    @property
    def is_aborted(self) -> bool: ...

    def equal_length_runs(self) -> Iterable[tuple[int, int, int]]: ...


class QueueEntry(NamedTuple):
    """Sequences of a lot that are equally long, in line with others of their length."""

    rank: int
    arrival: int
    start: int
    end: int
    group: Schedulable


class Scheduler:
    """The first in line always runs next; its company are the sequences nearest to it in length.

    Equal lengths side by side cost attention the least. Since every batch holds whoever waits longest, nobody is
    passed over for ever.
    """

    def __init__(self, token_budget: int, max_num_seqs: int | None = None, *, by_priority: bool = False) -> None:
        self.token_budget = token_budget
        self.max_num_seqs = max_num_seqs or token_budget  # none is shorter than one token
        self.by_priority = by_priority
        self.num_waiting_tokens = 0
        self._num_waiting = 0
        self._arrival_counter = count()
        self._queues: dict[int, list[QueueEntry]] = {}  # by length; each a heap of rank, arrival
        self._lengths: list[int] = []  # the keys of that, sorted

    def __len__(self) -> int:
        return self._num_waiting

    def add(self, groups: Iterable[Schedulable]) -> None:
        for lot in groups:
            rank = lot.priority if self.by_priority else 0
            arrival = next(self._arrival_counter)
            for length, start, end in lot.equal_length_runs():
                if length not in self._queues:
                    self._queues[length] = []
                    insort(self._lengths, length)
                heappush(self._queues[length], QueueEntry(rank, arrival, start, end, lot))
                self._update_counts(length, end - start)

    def next_batch(self) -> list[tuple[Schedulable, int, int]]:
        """The oldest sequence and the nearest to it that fit the budget; one that is too large runs alone.

        They come as lots, and where the neighbours in each begin and end that run.
        """
        batch: list[tuple[Schedulable, int, int]] = []
        tokens, room = 0, self.max_num_seqs
        for length in self._lengths_by_distance():
            queue = self._queues[length]
            while queue:
                fitting = min(room, (self.token_budget - tokens) // length)
                if fitting < 1 and batch:
                    break
                lot, start, end = self._pop(length, max(1, fitting))
                if lot is not None:
                    batch.append((lot, start, end))
                    tokens += length * (end - start)
                    room -= end - start
            if not queue:
                self._remove_length(length)
            if batch and (not room or tokens + (self._lengths[0] if self._lengths else 0) > self.token_budget):
                break
        return batch

    def clear(self) -> None:
        """Nothing waits any longer."""
        self._queues.clear()
        self._lengths.clear()
        self.num_waiting_tokens = self._num_waiting = 0

    def _lengths_by_distance(self) -> list[int]:
        """All lengths that wait, from that of the first in line outwards."""
        while self._queues:
            first = min(self._queues, key=lambda length: self._queues[length][0][:3])
            queue = self._queues[first]
            if not queue[0].group.is_aborted:
                return sorted(self._lengths, key=lambda length: abs(length - first))
            while queue and queue[0].group.is_aborted:
                self._pop(first, 1)
            if not queue:
                self._remove_length(first)
        return []

    def _pop(self, length: int, max_seqs: int) -> tuple[Schedulable | None, int, int]:
        """At most so many of the first in line; all of them and no lot where nobody waits for them any more."""
        rank, arrival, start, end, lot = heappop(self._queues[length])
        gone = lot.is_aborted
        taken = end if gone else min(end, start + max_seqs)
        if taken < end:
            heappush(self._queues[length], QueueEntry(rank, arrival, taken, end, lot))
        self._update_counts(length, start - taken)
        return None if gone else lot, start, taken

    def _update_counts(self, length: int, num_seqs: int) -> None:
        self._num_waiting += num_seqs
        self.num_waiting_tokens += length * num_seqs

    def _remove_length(self, length: int) -> None:
        del self._queues[length]
        del self._lengths[bisect_left(self._lengths, length)]
