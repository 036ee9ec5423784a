"""A simulated server behind an AdmissionController: an engine that measures its batches, in simulated time."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cenote.api.admission.controller import AdmissionController
from cenote.api.admission.engine_speed import SpeedReport
from cenote.api.admission.ticket import Ticket
from cenote.api.api_keys import ANONYMOUS, KeySettings
from cenote.engine.throughput import EngineRate
from cenote.errors import Overloaded

BATCH_TOKENS = 8192
REPORT_INTERVAL_S = 0.3  # of the supervisor, and before it of the heartbeat
OnDone = Callable[[float], None]  # called with the time of an answer, or at which a refused client comes back


@dataclass
class Outcome:
    latencies: list[float] = field(default_factory=list)
    retry_after: list[float] = field(default_factory=list)
    tokens: int = 0  # completed

    def percentile(self, share: float) -> float:
        return sorted(self.latencies)[int(share * len(self.latencies))]


# ticket, time of arrival, outcome and what follows
Waiting = tuple[Ticket, float, Outcome, OnDone]


class SimulatedServer:
    def __init__(
        self,
        tokens_per_s: float,
        batch_overhead_s: float,
        request_overhead_s: float = 0.0,
        max_queue_seconds: float | None = None,
    ) -> None:
        self.now = 1000.0
        self.tokens_per_s = tokens_per_s
        self.batch_overhead_s = batch_overhead_s
        self.request_overhead_s = request_overhead_s  # of the front-end, which serves one request after the other
        self.batch_tokens = BATCH_TOKENS
        self.estimate_factor = 1.0  # tokens as estimated at admission, relative to the true number
        self.controller = AdmissionController(
            max_queue_tokens=2**25,
            max_queue_seconds=max_queue_seconds,
            max_inflight_bytes=2**31,
            clock=lambda: self.now,
        )
        self.random = random.Random(1)
        self.rate = EngineRate()
        self._report = SpeedReport(0)
        self._reported_at = 0.0
        self._front_end_free_at = 0.0
        self._waiting: deque[Waiting] = deque()
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()
        self._batch_tokens, self._batch_started_at = 0, 0.0  # of the batch on the device; 0: none
        self.device_stops_until = 0.0  # no batch finishes before
        self.engine_lost_until = 0.0  # as before, and the supervisor knows that the engine process has exited
        self.keys: Sequence[KeySettings] = ()  # API keys of the requests; most have the first one

    def run(self, load: float, seconds: float, mean_tokens: int) -> Outcome:
        """Send requests at random times, so many times the capacity; return what became of them."""
        outcome = self.send_from(None, load, seconds, mean_tokens)
        self.run_until(self.now + seconds)
        return outcome

    def send_from(self, key: int | None, load: float, seconds: float, mean_tokens: int) -> Outcome:
        """Send requests with one of the API keys when the time comes; None: most of them have the first one."""
        outcome, at, end = Outcome(), self.now, self.now + seconds
        while at < end:
            tokens = round(mean_tokens * self.random.uniform(0.5, 1.5))
            self._schedule(at, self._arrive, tokens, outcome, lambda finished_at: None, key)
            at += self.random.expovariate(load * self.tokens_per_s / mean_tokens)
        return outcome

    def lose_engine(self, seconds: float) -> None:
        """Let the engine process exit now, and the next one compute again after some time."""
        self.engine_lost_until = self.now + seconds
        self._report_speed(0.0)
        self._schedule(self.engine_lost_until, self._report_speed, 0.0)

    @property
    def limit(self) -> float:
        """The tokens that may be in flight in the interactive lane."""
        controller = self.controller
        num_queued = controller.counters.total(controller.queued)
        return controller.limits[0].compute_tokens(self.now, num_queued, controller.speed)

    def run_clients(
        self, num_clients: int, seconds: float, tokens: int | Callable[[], int], pause_s: float = 0.0
    ) -> Outcome:
        """Let clients send one request after the other, the first of all at once; then wait for the last answers.

        `tokens` may be a function that returns the number of tokens of the next request.
        """
        outcome, end = Outcome(), self.now + seconds

        def send_next(finished_at: float) -> None:
            if (at := finished_at + pause_s) < end:
                self._schedule(at, self._arrive, next_tokens(), outcome, send_next)

        def next_tokens() -> int:
            return tokens if isinstance(tokens, int) else tokens()

        for _ in range(num_clients):
            self._schedule(self.now, self._arrive, next_tokens(), outcome, send_next)
        self.run_until(end)
        self.run_until(math.inf)
        return outcome

    def run_until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            self.now, _, call, arguments = heapq.heappop(self._events)
            call(*arguments)
        if end < math.inf:
            self.now = end

    def _schedule(self, at: float, call: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), call, arguments))

    def _arrive(self, tokens: int, outcome: Outcome, on_done: OnDone, number: int | None = None) -> None:
        if self.now >= self._reported_at + REPORT_INTERVAL_S:
            is_late = self._batch_tokens and self.rate.is_late(self._batch_tokens, self.now - self._batch_started_at)
            self._report_speed(self.now - self._batch_started_at if is_late else 0.0)
        try:
            if number is None:
                number = min(int(self.random.expovariate(1)), len(self.keys) - 1)
            key = self.keys[number] if self.keys else ANONYMOUS
            ticket = self.controller.admit(round(tokens * self.estimate_factor), None, key, self.keys)
        except Overloaded as error:
            outcome.retry_after.append(error.retry_after_s)
            on_done(self.now + error.retry_after_s)
            return
        ticket.set_tokens(tokens)
        self._front_end_free_at = max(self.now, self._front_end_free_at) + self.request_overhead_s
        self._schedule(self._front_end_free_at, self._send_to_engine, (ticket, self.now, outcome, on_done))

    def _send_to_engine(self, waiting: Waiting) -> None:
        self._waiting.append(waiting)
        self._start_batch()

    def _report_speed(self, late_s: float) -> None:
        """Report what the supervisor sees."""
        self._reported_at, is_lost = self.now, self.now < self.engine_lost_until
        self._report.write(self.controller.counters, self.now, self.rate.tokens_per_s, late_s, is_lost)

    def _start_batch(self) -> None:
        if self._batch_tokens or not self._waiting:
            return
        batch, tokens = [], 0
        while self._waiting and (not batch or tokens + self._waiting[0][0].tokens <= self.batch_tokens):
            batch.append(self._waiting.popleft())
            tokens += batch[-1][0].tokens
        self._batch_tokens, self._batch_started_at = tokens, self.now
        started_at = max(self.now, self.device_stops_until, self.engine_lost_until)
        self._schedule(started_at + self.batch_overhead_s + tokens / self.tokens_per_s, self._finish_batch, batch)

    def _finish_batch(self, batch: list[Waiting]) -> None:
        num_waiting = sum(ticket.tokens for ticket, *_ in self._waiting)
        self.rate.record(self._batch_tokens, self._batch_started_at, self.now, num_waiting)
        self._batch_tokens = 0
        for ticket, arrived_at, outcome, on_done in batch:
            ticket.release(is_completed=True)
            outcome.latencies.append(self.now - arrived_at)
            outcome.tokens += ticket.tokens
            on_done(self.now)
        self._start_batch()
