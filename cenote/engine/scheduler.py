"""Which waiting sequences run next; knows no tensors and no threads."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import count
from typing import Protocol


class Waiting(Protocol):
    """What the scheduler needs to know of a sequence."""

    priority: int

    @property
    def num_tokens(self) -> int: ...

    @property
    def abandoned(self) -> bool: ...


class Scheduler:
    """The first in line always runs next; its company are the sequences nearest to it in length.

    Equal lengths side by side cost attention the least. Since every batch holds whoever waits longest, nobody is
    passed over for ever.
    """

    def __init__(self, token_budget: int, max_sequences: int, *, by_priority: bool = False) -> None:
        self.token_budget = token_budget
        self.max_sequences = max_sequences
        self.by_priority = by_priority
        self.waiting_tokens = 0
        self._arrivals = count()
        self._queues: dict[int, list[tuple[int, int, Waiting]]] = {}  # by length; each a heap of priority, arrival
        self._lengths: list[int] = []  # the keys of that, sorted

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, sequences: Iterable[Waiting]) -> None:
        for sequence in sequences:
            length = sequence.num_tokens
            if length not in self._queues:
                self._queues[length] = []
                insort(self._lengths, length)
            rank = sequence.priority if self.by_priority else 0
            heappush(self._queues[length], (rank, next(self._arrivals), sequence))
            self.waiting_tokens += length

    def next_batch(self) -> list[Waiting]:
        """The oldest sequence and the nearest to it that fit the budget; one that is too large runs alone."""
        batch: list[Waiting] = []
        tokens = 0
        for length in self._nearest_first():
            queue = self._queues[length]
            while queue and len(batch) < self.max_sequences:
                if batch and tokens + length > self.token_budget:
                    break
                sequence = self._pop(length)
                if not sequence.abandoned:  # otherwise nobody waits for it any more
                    batch.append(sequence)
                    tokens += length
            if not queue:
                self._forget(length)
            if batch and tokens + (self._lengths[0] if self._lengths else 0) > self.token_budget:
                break
        return batch

    def clear(self) -> list[Waiting]:
        """Everything that waits, which then waits no longer."""
        waiting = [entry[2] for queue in self._queues.values() for entry in queue]
        self._queues.clear()
        self._lengths.clear()
        self.waiting_tokens = 0
        return waiting

    def _nearest_first(self) -> list[int]:
        """All lengths that wait, from that of the first in line outwards."""
        while self._queues:
            first = min(self._queues, key=lambda length: self._queues[length][0][:2])
            queue = self._queues[first]
            if not queue[0][2].abandoned:
                return sorted(self._lengths, key=lambda length: abs(length - first))
            while queue and queue[0][2].abandoned:
                self._pop(first)
            if not queue:
                self._forget(first)
        return []

    def _pop(self, length: int) -> Waiting:
        self.waiting_tokens -= length
        return heappop(self._queues[length])[2]

    def _forget(self, length: int) -> None:
        del self._queues[length]
        del self._lengths[bisect_left(self._lengths, length)]
