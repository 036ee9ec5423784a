"""RenderQueue: which inputs are rendered next; it has no thread, so that a thread or an event loop may drive it."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

from cenote.engine.pending import Pending
from cenote.protocol.input_types import Input
from cenote.protocol.scheduling import Lane

PendingT = TypeVar("PendingT", bound=Pending)

# slices of interactive requests in a row while bulk requests wait
MAX_INTERACTIVE_IN_A_ROW = 16


class RenderPart(NamedTuple, Generic[PendingT]):
    """Consecutive inputs of a request."""

    pending: PendingT
    inputs: Sequence[Input]
    attempt_number: int  # of the request

    @property
    def is_wanted(self) -> bool:
        """Whether the request still waits for these inputs."""
        return self.attempt_number == self.pending.attempt_number and not self.pending.is_aborted


class LaneRequests(Generic[PendingT]):
    """The requests that wait in one lane, by their key."""

    def __init__(self) -> None:
        self.by_key: dict[Hashable, deque[tuple[PendingT, int]]] = {}  # with the number of their attempt

    def __len__(self) -> int:
        return sum(map(len, self.by_key.values()))

    def next_parts(self, now: float, max_chars: int) -> list[RenderPart[PendingT]]:
        """Return inputs of requests with the same key, which fit a slice together, or of one larger request."""
        key = next(iter(self.by_key))
        waiting = self.by_key.pop(key)
        parts: list[RenderPart[PendingT]] = []
        num_chars = 0
        while waiting:
            pending, attempt_number = waiting[0]
            if pending.is_late(now):
                pending.expire(now)
            if pending.is_aborted or pending.attempt_number != attempt_number:
                waiting.popleft()
                continue
            if parts and num_chars + pending.num_render_chars > max_chars:
                break
            waiting.popleft()
            num_chars += pending.num_render_chars
            parts.append(RenderPart(pending, pending.take_slice(max_chars), attempt_number))
        if waiting:
            self.by_key[key] = waiting  # behind the requests with other keys
        return parts


class RenderQueue(Generic[PendingT]):
    """Requests take turns, a slice each, so that a small one does not wait for all of a large one.

    Interactive requests come first. A request with inputs left has to be added again.
    """

    def __init__(self) -> None:
        self.lanes: dict[Lane, LaneRequests[PendingT]] = {"interactive": LaneRequests(), "bulk": LaneRequests()}
        self._num_in_a_row = 0

    def __len__(self) -> int:
        return sum(map(len, self.lanes.values()))

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits; reading it needs no lock."""
        return not (self.lanes["interactive"].by_key or self.lanes["bulk"].by_key)

    def add(self, pending: PendingT) -> None:
        by_key, entry = self.lanes[pending.lane].by_key, (pending, pending.attempt_number)
        if (waiting := by_key.get(key := pending.render_key)) is None:
            by_key[key] = deque((entry,))
        else:
            waiting.append(entry)

    def choose_lanes(self) -> tuple[Lane, Lane]:
        """Return the lanes in the order in which their requests are next."""
        if self._num_in_a_row >= MAX_INTERACTIVE_IN_A_ROW:
            return "bulk", "interactive"
        return "interactive", "bulk"

    def mark_taken(self, lane: Lane) -> None:
        """Count work of a lane as its turn."""
        self._num_in_a_row = self._num_in_a_row + 1 if lane == "interactive" else 0

    def take(self, lane: Lane, now: float, max_chars: int) -> list[RenderPart[PendingT]]:
        """Return what is rendered next of a lane, at once; empty if nothing waits in it."""
        while self.lanes[lane].by_key:
            if parts := self.lanes[lane].next_parts(now, max_chars):
                self.mark_taken(lane)
                return parts
        return []

    def next_slice(self, now: float, max_chars: int) -> list[RenderPart[PendingT]]:
        """Return what is rendered next, at once; empty if nothing waits."""
        first, second = self.choose_lanes()
        return self.take(first, now, max_chars) or self.take(second, now, max_chars)
