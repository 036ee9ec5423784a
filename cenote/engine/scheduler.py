"""Scheduler: selects the waiting sequences of the next batch; uses no tensors and no threads."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple, Protocol

from cenote.protocol.scheduling import SchedulingParams


class Schedulable(Protocol):
    """A SequenceGroup as the scheduler sees it."""

    scheduling: SchedulingParams

    @property
    def is_aborted(self) -> bool: ...

    def equal_length_runs(self) -> Iterable[tuple[int, int, int]]: ...


class QueueEntry(NamedTuple):
    """Consecutive sequences of a group with equal length, in the queue of that length."""

    rank: int
    arrival: int
    start: int
    end: int
    group: Schedulable


class Scheduler:
    """Build batches of the first sequence in the queue and those closest to it in length.

    Attention is cheapest for sequences of equal length. Every batch contains the first sequence in the queue, so none
    starves.
    """

    def __init__(self, token_budget: int, max_num_seqs: int | None = None, *, by_priority: bool = False) -> None:
        self.token_budget = token_budget
        self.max_num_seqs = max_num_seqs or token_budget  # every sequence has at least one token
        self.by_priority = by_priority
        self.num_waiting_tokens = 0
        self._num_waiting = 0
        self._arrival_counter = count()
        self._queues: dict[int, list[QueueEntry]] = {}  # by length; each a heap ordered by rank and arrival
        self._lengths: list[int] = []  # sorted keys of _queues

    def __len__(self) -> int:
        return self._num_waiting

    def add(self, groups: Iterable[Schedulable]) -> None:
        for group in groups:
            rank = group.scheduling.priority if self.by_priority else 0
            arrival = next(self._arrival_counter)
            for length, start, end in group.equal_length_runs():
                if length not in self._queues:
                    self._queues[length] = []
                    insort(self._lengths, length)
                heappush(self._queues[length], QueueEntry(rank, arrival, start, end, group))
                self._update_counts(length, end - start)

    def next_batch(self) -> list[tuple[Schedulable, int, int]]:
        """Return the first sequence and those closest in length that fit the budget, as (group, start, end).

        A sequence longer than the budget runs alone.
        """
        batch: list[tuple[Schedulable, int, int]] = []
        num_tokens, seqs_left = 0, self.max_num_seqs
        for length in self._lengths_by_distance():
            queue = self._queues[length]
            while queue:
                num_fitting = min(seqs_left, (self.token_budget - num_tokens) // length)
                if num_fitting < 1 and batch:
                    break
                group, start, end = self._pop(length, max(1, num_fitting))
                if group is not None:
                    batch.append((group, start, end))
                    num_tokens += length * (end - start)
                    seqs_left -= end - start
            if not queue:
                self._remove_length(length)
            min_length = self._lengths[0] if self._lengths else 0
            if batch and (not seqs_left or num_tokens + min_length > self.token_budget):
                break
        return batch

    def clear(self) -> None:
        """Remove all sequences."""
        self._queues.clear()
        self._lengths.clear()
        self.num_waiting_tokens = self._num_waiting = 0

    def _lengths_by_distance(self) -> list[int]:
        """Return all queued lengths by distance from that of the first sequence; drop aborted groups at the front."""
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
        """Pop at most `max_seqs` sequences from the queue of a length; an aborted group entirely, as None."""
        rank, arrival, start, end, group = heappop(self._queues[length])
        is_aborted = group.is_aborted
        stop = end if is_aborted else min(end, start + max_seqs)
        if stop < end:
            heappush(self._queues[length], QueueEntry(rank, arrival, stop, end, group))
        self._update_counts(length, start - stop)
        return None if is_aborted else group, start, stop

    def _update_counts(self, length: int, num_seqs: int) -> None:
        self._num_waiting += num_seqs
        self.num_waiting_tokens += length * num_seqs

    def _remove_length(self, length: int) -> None:
        del self._queues[length]
        del self._lengths[bisect_left(self._lengths, length)]
