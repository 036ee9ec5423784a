"""LaneQueue: the waiting sequences of one lane; tenants share its tokens by weight."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from cenote.protocol.scheduling import SchedulingParams

# a batch is divided between tenants in turns of at least this part of it: smaller turns would split it into many slices
TURNS_PER_BATCH = 16
# tenants asked for a sequence that still fits; with more of them, an almost full batch would take long to build
MAX_SKIPPED_TENANTS = 16
MIN_WEIGHT = 1e-3
# idle tenants that are remembered because they have had more than their share
MAX_IDLE_TENANTS = 4096


class Schedulable(Protocol):
    """A SequenceGroup as the scheduler sees it."""

    scheduling: SchedulingParams
    deadline_at: float  # monotonic; 0.0: none

    @property
    def is_aborted(self) -> bool: ...

    def equal_length_runs(self) -> Iterable[tuple[int, int, int]]: ...


Slice = tuple[Schedulable, int, int]  # group, start, end


@dataclass(slots=True, eq=False)
class QueueEntry:
    """Consecutive sequences of a group with equal length; `start` advances as they are taken."""

    group: Schedulable
    length: int
    start: int
    end: int
    added_at: float


@dataclass(slots=True)
class Room:
    """What a batch has room for."""

    num_tokens: int
    num_seqs: int
    max_first: float = 0.0  # length up to which the first sequence is taken even if it exceeds `num_tokens`


class TenantQueue:
    """Waiting sequences of one tenant with equal rank, by length and in order of arrival."""

    def __init__(self, rank: int, tenant: str, virtual_time: float) -> None:
        self.rank = rank
        self.tenant = tenant
        self.weight = 1.0
        self.virtual_time = virtual_time  # tokens scheduled, divided by the weight
        self._entries: deque[QueueEntry] = deque()  # in order of arrival; those that are used up are removed late
        self._by_length: dict[int, deque[QueueEntry]] = {}
        self._lengths: list[int] = []  # sorted keys of _by_length

    def add(self, entry: QueueEntry) -> None:
        if entry.length not in self._by_length:
            self._by_length[entry.length] = deque()
            insort(self._lengths, entry.length)
        self._by_length[entry.length].append(entry)
        self._entries.append(entry)

    def find_oldest(self) -> QueueEntry | None:
        while self._entries and self._entries[0].start == self._entries[0].end:
            self._entries.popleft()
        return self._entries[0] if self._entries else None

    def take(self, room: Room, first_length: int, drop: Callable[[QueueEntry], bool]) -> list[Slice]:
        """Take sequences that fit the room, in order of distance from `first_length`.

        `drop` is called with every entry that is reached and says whether it must not run.
        """
        slices: list[Slice] = []
        for length in self._iter_lengths(room, first_length):
            entries = self._by_length[length]
            while entries:
                num_fitting = min(room.num_seqs, room.num_tokens // max(1, length))
                if num_fitting < 1:
                    if slices or length > room.max_first or room.num_seqs < 1:
                        break
                    num_fitting = 1
                entry = entries[0]
                if drop(entry):
                    self.remove(entry)
                    if not entries:
                        break
                    continue
                end = min(entry.end, entry.start + num_fitting)
                slices.append((entry.group, entry.start, end))
                room.num_tokens -= length * (end - entry.start)
                room.num_seqs -= end - entry.start
                entry.start = end
                if end == entry.end:
                    self.remove(entry)
        return slices

    def remove(self, entry: QueueEntry) -> None:
        """Remove the first entry of its length."""
        entry.start = entry.end
        entries = self._by_length[entry.length]
        entries.popleft()
        if not entries:
            del self._by_length[entry.length]
            del self._lengths[bisect_left(self._lengths, entry.length)]

    def _iter_lengths(self, room: Room, first_length: int) -> Iterator[int]:
        """Yield queued lengths that fit the room by their distance from `first_length`, which is queued."""
        lengths = self._lengths.copy()
        right = bisect_left(lengths, first_length)
        left = right - 1
        yield first_length
        right += 1
        while room.num_seqs > 0:
            if left >= 0 and lengths[left] > room.num_tokens:
                left = bisect_right(lengths, room.num_tokens, 0, left) - 1
            has_right = right < len(lengths) and lengths[right] <= room.num_tokens
            if left < 0 and not has_right:
                return
            if not has_right or (left >= 0 and first_length - lengths[left] <= lengths[right] - first_length):
                yield lengths[left]
                left -= 1
            else:
                yield lengths[right]
                right += 1


class LaneQueue:
    """Order of tenants: lower rank first, then the tenant with the fewest scheduled tokens relative to its weight.

    A tenant that was idle starts with the virtual time of the others, so that it collects no credit.
    """

    def __init__(self) -> None:
        self.num_waiting = 0
        self.num_tokens = 0
        self.expired: list[Schedulable] = []  # groups that were removed because their deadline has passed
        self._tenants: dict[tuple[int, str], TenantQueue] = {}  # those with waiting sequences
        self._order: list[tuple[int, float, int, TenantQueue]] = []  # heap of them: rank, virtual time, tie breaker
        self._ties = count()
        self._virtual_times: dict[int, float] = {}  # of each rank: that of the tenant served last
        self._idle_times: dict[tuple[int, str], float] = {}  # virtual times of idle tenants

    def add(self, group: Schedulable, rank: int, now: float) -> None:
        scheduling = group.scheduling
        key = rank, scheduling.tenant
        queue = self._tenants.get(key)
        if queue is None:
            virtual_time = max(self._idle_times.pop(key, 0.0), self._get_virtual_time(rank))
            queue = self._tenants[key] = TenantQueue(rank, scheduling.tenant, virtual_time)
            heappush(self._order, (rank, virtual_time, next(self._ties), queue))
        queue.weight = max(scheduling.weight, MIN_WEIGHT)
        for length, start, end in group.equal_length_runs():
            queue.add(QueueEntry(group, length, start, end, now))
            self.num_waiting += end - start
            self.num_tokens += length * (end - start)

    def take(self, room: Room, now: float) -> list[Slice]:
        """Take sequences that fit the room, which is reduced, from the tenants in turn."""
        slices: list[Slice] = []
        skipped: list[tuple[int, float, int, TenantQueue]] = []  # tenants without a sequence that fits
        turn_tokens = room.num_tokens // TURNS_PER_BATCH
        while self._order and room.num_seqs > 0 and len(skipped) < MAX_SKIPPED_TENANTS:
            if slices and room.num_tokens <= 0:
                break
            item = heappop(self._order)
            queue = item[3]
            self._virtual_times[queue.rank] = max(queue.virtual_time, self._virtual_times.get(queue.rank, 0.0))
            first_length = self._find_first_length(queue, now)
            if first_length is None:
                self._retire(queue)
                continue
            is_alone = not self._order or self._order[0][0] > queue.rank
            num_tokens = room.num_tokens if is_alone else min(room.num_tokens, max(turn_tokens, first_length))
            part = Room(num_tokens, room.num_seqs, 0.0 if slices else room.max_first)
            taken = queue.take(part, first_length, lambda entry: self._drop(entry, now))
            num_taken = num_tokens - part.num_tokens
            room.num_tokens -= num_taken
            room.num_seqs = part.num_seqs
            slices += taken
            self.num_tokens -= num_taken
            self.num_waiting -= sum(end - start for _, start, end in taken)
            queue.virtual_time += num_taken / queue.weight
            if not taken:
                skipped.append(item)
            elif queue.find_oldest() is None:
                self._retire(queue)
            else:
                heappush(self._order, (queue.rank, queue.virtual_time, next(self._ties), queue))
        for item in skipped:
            if item[3].find_oldest() is None:
                self._retire(item[3])
            else:
                heappush(self._order, item)
        if not self._order:  # nobody waits: all tenants start equal
            self._virtual_times.clear()
            self._idle_times.clear()
        return slices

    def find_oldest_time(self) -> float | None:
        """Return when the sequence was added that has waited longest."""
        oldest = [entry.added_at for queue in self._tenants.values() if (entry := queue.find_oldest()) is not None]
        return min(oldest, default=None)

    def find_next_length(self) -> int:
        """Return the length of the sequence that `take` would start with; 0 if none waits."""
        entry = self._order[0][3].find_oldest() if self._order else None
        return 0 if entry is None else entry.length

    def _get_virtual_time(self, rank: int) -> float:
        """Return the smallest virtual time of the waiting tenants, or if there is none, of the tenant served last."""
        if self._order and self._order[0][0] == rank:
            return self._order[0][1]
        return self._virtual_times.get(rank, 0.0)

    def _find_first_length(self, queue: TenantQueue, now: float) -> int | None:
        """Return the length of the tenant's oldest sequence that must run."""
        while (entry := queue.find_oldest()) is not None and self._drop(entry, now):
            queue.remove(entry)
        return None if entry is None else entry.length

    def _drop(self, entry: QueueEntry, now: float) -> bool:
        """Return whether nobody waits for an entry; if so, it is no longer counted."""
        group = entry.group
        is_expired = 0.0 < group.deadline_at <= now
        if not is_expired and not group.is_aborted:
            return False
        if is_expired and not group.is_aborted:
            self.expired.append(group)
        self.num_waiting -= entry.end - entry.start
        self.num_tokens -= entry.length * (entry.end - entry.start)
        return True

    def _retire(self, queue: TenantQueue) -> None:
        key = queue.rank, queue.tenant
        del self._tenants[key]
        if queue.virtual_time > self._virtual_times.get(queue.rank, 0.0):
            self._idle_times[key] = queue.virtual_time
            if len(self._idle_times) > MAX_IDLE_TENANTS:
                del self._idle_times[next(iter(self._idle_times))]
