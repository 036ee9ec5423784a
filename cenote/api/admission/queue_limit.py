"""How much may wait in a lane: as many tokens as the server computes in a bounded time, by its measured speed."""

from __future__ import annotations

from dataclasses import dataclass

# a rate is measured over at least this time, and until a request completes
WINDOW_S = 0.25
RATE_GAIN = 0.5  # weight of a new measurement
# latency without a queue: adapts faster downwards, since noise only adds to it
LATENCY_GAIN_DOWN, LATENCY_GAIN_UP = 0.2, 0.02


@dataclass(frozen=True, slots=True)
class LaneTimes:
    """Bounds of the time that requests of a lane wait."""

    min_burst_s: float  # a burst may fill the queue up to this time, or `BURST_LATENCIES` if longer
    min_overload_s: float  # after that, in overload: up to this time, or `OVERLOAD_LATENCIES` if longer
    initial_tokens: float  # limit before the rate has been measured


BURST_LATENCIES, OVERLOAD_LATENCIES = 16, 4
INTERACTIVE_TIMES = LaneTimes(0.5, 0.04, 16_384)
BULK_TIMES = LaneTimes(10.0, 1.0, 1_048_576)


class QueueLimit:
    """The limit of one lane in tokens, adapted to what the lane completes and how long its requests take.

    A burst may fill the queue up to a long time. Once it is full, more arrives than the server computes, and a long
    queue would only add to the latency of every request: the limit is the short time until the queue is nearly empty.
    """

    def __init__(self, times: LaneTimes, max_tokens: int, max_seconds: float | None = None) -> None:
        self.times = times
        self.max_tokens = max_tokens
        self.max_seconds = max_seconds  # set by an option: the time in both states
        self.latency_s = 0.0  # of requests that did not wait; 0.0: none yet
        self.is_overloaded = False
        self.rate = times.initial_tokens / times.min_burst_s  # tokens per second
        self._is_measured = False
        self._window_started_at = 0.0
        self._window_done = 0.0
        self._is_window_full = True  # the lane was never nearly empty in the window, so that its rate is the capacity
        self.tokens = 0.0  # the limit
        self._update()

    @property
    def is_measured(self) -> bool:
        """Whether the rate has been measured while the lane was full; otherwise the server may be faster."""
        return self._is_measured

    def on_full(self) -> None:
        """A request did not fit."""
        if not self.is_overloaded:
            self.is_overloaded = True
            self._update()

    def on_completed(self, now: float, num_queued: float, num_done: float, latency_s: float) -> None:
        """A request has completed; `latency_s` is 0.0 unless it found the lane nearly empty."""
        if latency_s:
            gain = LATENCY_GAIN_DOWN if latency_s < self.latency_s else LATENCY_GAIN_UP
            self.latency_s += gain * (latency_s - self.latency_s) if self.latency_s else latency_s
        if num_queued < self.tokens / 4:
            self._is_window_full = False
            if self.is_overloaded and num_queued < self.tokens / 8:
                self.is_overloaded = False
        if now - self._window_started_at >= WINDOW_S:
            self._end_window(now, num_queued, num_done)

    def _end_window(self, now: float, num_queued: float, num_done: float) -> None:
        seconds, num_tokens = now - self._window_started_at, num_done - self._window_done
        # a lane with little to do completes less than it could: such a rate is only a lower bound
        if self._window_started_at and num_tokens > 0:
            rate = num_tokens / seconds
            if self._is_window_full:
                self.rate = self.rate + RATE_GAIN * (rate - self.rate) if self._is_measured else rate
                self._is_measured = True
            elif rate > self.rate:
                self.rate = rate
        self._window_started_at, self._window_done = now, num_done
        self._update()
        self._is_window_full = num_queued >= self.tokens / 4

    def _update(self) -> None:
        times = self.times
        if self.max_seconds is not None:
            seconds = self.max_seconds
        elif self.is_overloaded:
            seconds = max(times.min_overload_s, OVERLOAD_LATENCIES * self.latency_s)
        else:
            seconds = max(times.min_burst_s, BURST_LATENCIES * self.latency_s)
        self.tokens = min(self.rate * seconds, self.max_tokens)
