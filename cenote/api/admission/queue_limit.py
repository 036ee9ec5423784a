"""How much may wait in a lane: as many tokens as the server computes in a bounded time, by its measured speed."""

from __future__ import annotations

from dataclasses import dataclass

# a rate is measured over at least this time, from the end of one batch to the end of another: the requests of a batch
# complete together
WINDOW_S = 0.25
BATCH_GAP_S = 0.004  # between completions of different batches; without gaps a window ends after twice the time
RECOVERY_S = 60.0  # what waits for another engine process may take this long: it is answered, not refused
# that time ends when so much of the limit is used: API keys may use only their shares of it again, and not all wait
# equally long
RECOVERED_SHARE = 0.25
OVERLOAD_S = 1.0  # after the last request that did not fit, a lane is in overload for this long
# shorter than the time of a burst, in which the queue would be full
MIN_STALL_S, STALL_LATENCIES = 0.25, 8
RATE_GAIN = 0.3  # weight of a new measurement
# latency without a queue: adapts faster downwards, since noise only adds to it
LATENCY_GAIN_DOWN, LATENCY_GAIN_UP = 0.2, 0.05


@dataclass(frozen=True, slots=True)
class LaneTimes:
    """Bounds of the time that requests of a lane wait."""

    min_burst_s: float  # a burst may fill the queue up to this time, or `BURST_LATENCIES` if longer
    min_overload_s: float  # after that, in overload: up to this time, or `OVERLOAD_LATENCIES` if longer
    initial_tokens: float  # least limit before the rate has been measured


BURST_LATENCIES, OVERLOAD_LATENCIES = 24, 16
# a quarter of a second: tens of clients that send one request after the other are not refused, however fast the server
INTERACTIVE_TIMES = LaneTimes(1.0, 0.25, 16384)
# before a GPU has been measured
MIN_GPU_TOKENS = 1_048_576
# those who send thousands of texts at a time wait rather than come back later
BULK_TIMES = LaneTimes(60.0, 15.0, 4_194_304)


class QueueLimit:
    """The limit of one lane in tokens, adapted to what the lane completes and how long its requests take.

    A burst may fill the queue up to a long time. Once it is full, more arrives than the server computes, and a long
    queue would only add to the latency of every request: the limit is a short time until no request is refused.
    """

    def __init__(self, times: LaneTimes, max_tokens: int, max_seconds: float | None = None) -> None:
        self.times = times
        self._initial_tokens = times.initial_tokens
        self.max_tokens = max_tokens
        self.max_seconds = max_seconds  # set by an option: the time in both states
        self.latency_s = 0.0  # of requests that did not wait; 0.0: none yet
        self.is_overloaded = False
        self.rate = 1.0  # tokens per second
        self._is_measured = False
        self._overloaded_until = 0.0
        self._window_started_at = self._batch_started_at = self._last_at = 0.0
        self._window_done = self._last_done = 0.0
        # in the window: a request did not fit, and a request found the lane empty
        self._was_full = self._was_empty = False
        # since an engine process has exited or does not go on, until what waited for it has been computed
        self.is_recovering = self._is_interrupted = False
        self._recovered_at = self._recovery_ends_at = 0.0
        self._is_window_valid = True
        self.tokens = 0.0  # the limit
        self._update()

    def expect_gpu(self) -> None:
        """Admit more before the rate has been measured."""
        self._initial_tokens = max(self._initial_tokens, MIN_GPU_TOKENS)
        self._update()

    def on_interrupted(self) -> None:
        """The engine process has exited: requests wait for the next one."""
        self.is_recovering = self._is_interrupted = True
        self._update()

    def on_resumed(self, now: float) -> None:
        """The next engine process computes requests; the time in between says nothing about its speed."""
        self._is_interrupted, self._recovered_at, self._is_window_valid = False, now, False

    def on_waiting(self, seconds: float) -> bool:
        """The lane is not empty and has completed nothing for some time; return whether the engine may be stopped.

        If that takes as long as many requests without a queue, the engine process is stopped or hangs: requests wait
        until it goes on or is replaced. In overload the machine itself may be too busy to complete anything.
        """
        if self.is_overloaded:
            return False
        stall_s = max(MIN_STALL_S, STALL_LATENCIES * self.latency_s) if self._is_measured else self.times.min_burst_s
        if seconds > stall_s and not self.is_recovering:
            self.is_recovering, self._is_window_valid = True, False
            self._update()
        return seconds > stall_s / 4

    def on_rate(self, rate: float) -> None:
        """Another front-end has measured the rate: used until this one has, which is new or has few requests."""
        if not self._is_measured and rate > self.rate:
            self.rate = rate
            self._update()

    def estimate_wait(self, tokens: float, default_s: float = 1.0) -> float:
        """Return the seconds that tokens take; the default before the rate has been measured."""
        return tokens / self.rate if self._is_measured else default_s

    def on_admitted(self, now: float, num_queued: float) -> None:
        """A request was admitted behind so many tokens."""
        if not num_queued:
            self._was_empty = True
        if self.is_recovering and not self._is_interrupted:
            self._recovery_ends_at = self._recovery_ends_at or now + RECOVERY_S  # also if more arrives than is computed
            if num_queued <= self.rate * self._burst_s * RECOVERED_SHARE or now > self._recovery_ends_at:
                self.is_recovering, self._recovery_ends_at = False, 0.0
                self._update()
        if self.is_overloaded and now > self._overloaded_until:
            self.is_overloaded = False
            self._update()

    def on_full(self, now: float) -> None:
        """A request did not fit."""
        self._overloaded_until = now + OVERLOAD_S
        self._was_full = True
        if not self.is_overloaded:
            self.is_overloaded = True
            self._update()

    def on_completed(self, now: float, num_done: float, latency_s: float) -> bool:
        """A request has completed; `latency_s` is 0.0 unless it found the lane empty. Return whether a window ended."""
        if not self._is_window_valid:
            self._is_window_valid = True
            self._window_started_at = self._batch_started_at = self._last_at = now
            self._window_done = self._last_done = num_done
            self._was_full = self._was_empty = False
            return False
        if latency_s and now - latency_s >= self._recovered_at:
            gain = LATENCY_GAIN_DOWN if latency_s < self.latency_s else LATENCY_GAIN_UP
            self.latency_s += gain * (latency_s - self.latency_s) if self.latency_s else latency_s
        window_ended = False
        if now - self._last_at > BATCH_GAP_S:
            if window_ended := self._last_at - self._window_started_at >= WINDOW_S:
                self._end_window(self._last_at, self._last_done)
            self._batch_started_at = now
        elif window_ended := now - self._batch_started_at >= 2 * WINDOW_S:
            self._end_window(now, num_done)
            self._batch_started_at = now
        self._last_at, self._last_done = now, num_done
        return window_ended

    def _end_window(self, now: float, num_done: float) -> None:
        seconds, num_tokens = now - self._window_started_at, num_done - self._window_done
        if self._window_started_at and num_tokens > 0:
            rate = num_tokens / seconds
            if self._was_full or not self._was_empty:
                self.rate = self.rate + RATE_GAIN * (rate - self.rate) if self._is_measured else rate
                self._is_measured = True
            elif rate > self.rate:  # a lane with little to do completes less than it could
                self.rate += RATE_GAIN * (rate - self.rate)
        self._window_started_at, self._window_done = now, num_done
        self._was_full = self._was_empty = False
        self._update()

    @property
    def _burst_s(self) -> float:
        return max(self.times.min_burst_s, BURST_LATENCIES * self.latency_s)

    def _update(self) -> None:
        times = self.times
        if self.is_recovering:
            seconds = RECOVERY_S
        elif self.max_seconds is not None:
            seconds = self.max_seconds
        elif self.is_overloaded:
            seconds = max(times.min_overload_s, OVERLOAD_LATENCIES * self.latency_s)
        else:
            seconds = self._burst_s
        tokens = self.rate * seconds
        if not self._is_measured:
            tokens = max(tokens, self._initial_tokens)
        self.tokens = min(tokens, self.max_tokens)
