"""A simulated server behind an AdmissionController: one device that computes batches, in simulated time."""

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
from cenote.api.admission.ticket import Ticket
from cenote.api.key_settings import ANONYMOUS, KeySettings
from cenote.errors import Overloaded

BATCH_TOKENS = 8192
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
    def __init__(self, tokens_per_s: float, batch_overhead_s: float, request_overhead_s: float = 0.0) -> None:
        self.now = 1000.0
        self.tokens_per_s = tokens_per_s
        self.batch_overhead_s = batch_overhead_s
        self.request_overhead_s = request_overhead_s  # of the front-end
        self.batch_tokens = BATCH_TOKENS
        self.estimate_factor = 1.0  # tokens as estimated at admission, relative to the true number
        self.controller = AdmissionController(max_queue_tokens=2**25, max_inflight_bytes=2**31, clock=lambda: self.now)
        self.random = random.Random(1)
        self._waiting: deque[Waiting] = deque()
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()
        self._is_busy = False
        self.device_stops_until = 0.0  # no batch finishes before
        self.keys: Sequence[KeySettings] = ()  # API keys of the requests; most have the first one

    def run(self, load: float, seconds: float, mean_tokens: int) -> Outcome:
        """Send requests at random times, so many times the capacity; return what became of them."""
        outcome, at, end = Outcome(), self.now, self.now + seconds
        while at < end:
            tokens = round(mean_tokens * self.random.uniform(0.5, 1.5))
            self._schedule(at, self._arrive, tokens, outcome)
            at += self.random.expovariate(load * self.tokens_per_s / mean_tokens)
        self._run_until(end)
        return outcome

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
        self._run_until(end)
        self._run_until(math.inf)
        return outcome

    def _run_until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            self.now, _, call, arguments = heapq.heappop(self._events)
            call(*arguments)
        if end < math.inf:
            self.now = end

    def _schedule(self, at: float, call: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), call, arguments))

    def _arrive(self, tokens: int, outcome: Outcome, on_done: OnDone = lambda finished_at: None) -> None:
        try:
            number = min(int(self.random.expovariate(1)), len(self.keys) - 1)
            key = self.keys[number] if self.keys else ANONYMOUS
            ticket = self.controller.admit(round(tokens * self.estimate_factor), None, key, self.keys)
        except Overloaded as error:
            outcome.retry_after.append(error.retry_after_s)
            on_done(self.now + error.retry_after_s)
            return
        ticket.set_tokens(tokens)
        self._waiting.append((ticket, self.now, outcome, on_done))
        self._start_batch()

    def _start_batch(self) -> None:
        if self._is_busy or not self._waiting:
            return
        batch, tokens = [], 0
        while self._waiting and (not batch or tokens + self._waiting[0][0].tokens <= self.batch_tokens):
            batch.append(self._waiting.popleft())
            tokens += batch[-1][0].tokens
        self._is_busy = True
        started_at = max(self.now, self.device_stops_until)
        overhead_s = self.batch_overhead_s + len(batch) * self.request_overhead_s
        self._schedule(started_at + overhead_s + tokens / self.tokens_per_s, self._finish_batch, batch)

    def _finish_batch(self, batch: list[Waiting]) -> None:
        self._is_busy = False
        for ticket, arrived_at, outcome, on_done in batch:
            ticket.release(is_completed=True)
            outcome.latencies.append(self.now - arrived_at)
            outcome.tokens += ticket.tokens
            on_done(self.now)
        self._start_batch()
