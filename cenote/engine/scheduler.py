"""Scheduler: selects the waiting sequences of the next batch; uses no tensors and no threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from cenote.engine.lane_queue import LaneQueue, Room, Schedulable, Slice
from cenote.engine.throughput import ThroughputEstimate
from cenote.protocol.scheduling import Lane

# after the last interactive sequence, bulk batches stay short for this long: the next query arrives any moment
INTERACTIVE_WINDOW_S = 1.0
DEFAULT_BULK_MAX_WAIT_S = 5.0
# device time of bulk sequences in a batch while there is interactive traffic
DEFAULT_BULK_BATCH_S = 0.04
# without interactive traffic, a bulk batch takes at most this long unless it is small: the first query may come, and
# more tokens make a batch no more efficient
BULK_ALONE_S, MIN_BULK_ALONE_TOKENS = 0.12, 256
# smaller bulk parts are less efficient (on two cores a sequence alone takes a third more CPU time than in a batch): on
# slow devices they may take twice as long beside interactive traffic, up to this many tokens
SMALL_BULK_TOKENS = 192
# before any batch has been measured, bulk batches have this part of the token budget
UNMEASURED_PART = 8


class Scheduler:
    """Build batches of the first sequence in the queue and those closest to it in length.

    Attention is cheapest for sequences of equal length. Every batch contains the first sequence of a tenant, so none
    starves.

    Interactive sequences come before bulk ones. While there are interactive sequences, and for a second after, the bulk
    part of a batch takes about `bulk_batch_s`. With `mix_lanes` it fills up batches of interactive sequences; without,
    every second batch of interactive sequences has no bulk part, so that they do not wait for it. When bulk sequences
    have waited for longer than `bulk_max_wait_s`, room for them is kept in every second batch.
    """

    def __init__(
        self,
        token_budget: int,
        max_num_seqs: int | None = None,
        *,
        by_priority: bool = False,
        mix_lanes: bool = True,
        bulk_batch_s: float = DEFAULT_BULK_BATCH_S,
        bulk_max_wait_s: float = DEFAULT_BULK_MAX_WAIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.token_budget = token_budget
        self.max_num_seqs = max_num_seqs or token_budget  # every sequence has at least one token
        self.by_priority = by_priority
        self.mix_lanes = mix_lanes
        self.bulk_batch_s = bulk_batch_s
        self.bulk_max_wait_s = bulk_max_wait_s
        self.clock = clock
        self.lanes: dict[Lane, LaneQueue] = {"interactive": LaneQueue(), "bulk": LaneQueue()}
        self.throughput = ThroughputEstimate(bulk_batch_s)
        self._last_interactive_at = float("-inf")
        self._is_bulk_turn = False

    def __len__(self) -> int:
        return self.lanes["interactive"].num_waiting + self.lanes["bulk"].num_waiting

    @property
    def num_waiting_tokens(self) -> int:
        return sum(lane.num_tokens for lane in self.lanes.values())

    @property
    def has_interactive_traffic(self) -> bool:
        """Whether interactive sequences wait, or ran recently."""
        if self.lanes["interactive"].num_waiting:
            return True
        return self.clock() - self._last_interactive_at <= INTERACTIVE_WINDOW_S

    def add(self, groups: Iterable[Schedulable]) -> None:
        now = self.clock()
        for group in groups:
            scheduling = group.scheduling
            self.lanes[scheduling.lane].add(group, scheduling.priority if self.by_priority else 0, now)

    def on_queue_skipped(self, group: Schedulable) -> None:
        """Take note of a group that runs at once, because no sequence waits."""
        if group.scheduling.lane == "interactive":
            self._last_interactive_at = self.clock()

    def next_batch(self) -> list[Slice]:
        """Return the sequences of the next batch, as (group, start, end).

        A sequence longer than the budget runs alone.
        """
        interactive, bulk = self.lanes["interactive"], self.lanes["bulk"]
        if not interactive.num_waiting and not bulk.num_waiting:
            return []
        now = self.clock()
        room = Room(self.token_budget, self.max_num_seqs, float("inf"))
        if not interactive.num_waiting and now - self._last_interactive_at > INTERACTIVE_WINDOW_S:
            room.num_tokens = self._compute_bulk_tokens(BULK_ALONE_S, MIN_BULK_ALONE_TOKENS)
            return bulk.take(room, now)
        if not bulk.num_waiting:
            self._last_interactive_at = now if interactive.num_waiting else self._last_interactive_at
            return interactive.take(room, now)
        return self._next_mixed_batch(room, now)

    def take_expired(self) -> list[Schedulable]:
        """Return the groups that `next_batch` has removed because their deadline has passed."""
        expired: list[Schedulable] = []
        for lane in self.lanes.values():
            if lane.expired:
                expired += lane.expired
                lane.expired.clear()
        return expired

    def clear(self) -> None:
        """Remove all sequences."""
        self.lanes = {lane: LaneQueue() for lane in self.lanes}

    def _next_mixed_batch(self, room: Room, now: float) -> list[Slice]:
        interactive, bulk = self.lanes["interactive"], self.lanes["bulk"]
        bulk_tokens = self._compute_bulk_tokens(self.bulk_batch_s)
        if bulk_tokens < SMALL_BULK_TOKENS:
            bulk_tokens = min(SMALL_BULK_TOKENS, 2 * bulk_tokens)
        is_bulk_turn = self._is_bulk_turn
        # at most half: interactive sequences go on
        reserved = min(bulk_tokens, self.token_budget // 2) if is_bulk_turn and self._is_bulk_old(now) else 0
        room.num_tokens -= reserved
        batch = interactive.take(room, now)
        self._is_bulk_turn = bool(batch) and not is_bulk_turn
        if batch:
            self._last_interactive_at = now
            if not self.mix_lanes and not is_bulk_turn:
                return batch
        num_left = room.num_tokens + reserved
        allowed = min(num_left, max(reserved, bulk_tokens - (self.token_budget - num_left)))
        if batch and allowed <= 0:
            return batch
        return batch + bulk.take(Room(allowed, room.num_seqs, num_left if batch else float("inf")), now)

    def _compute_bulk_tokens(self, seconds: float, minimum: int = 0) -> int:
        """Return the bulk tokens that take this long."""
        measured = self.throughput.max_tokens(max(1, self.lanes["bulk"].find_next_length()), seconds)
        return min(self.token_budget, max(minimum, measured or self.token_budget // UNMEASURED_PART))

    def _is_bulk_old(self, now: float) -> bool:
        oldest = self.lanes["bulk"].find_oldest_time()
        return oldest is not None and now - oldest > self.bulk_max_wait_s
