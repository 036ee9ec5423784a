"""How much may wait in a lane: as many tokens as the server computes in a bounded time, by its measured speed."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

# a rate is measured over at least this time, from the end of one batch to the end of another: the requests of a batch
# complete together
WINDOW_S = 0.25
BATCH_GAP_S = 0.004  # between completions of different batches; without gaps a window ends after twice the time
RECOVERY_S = 60.0  # what waits for another engine process may take this long: it is answered, not refused
# when that is computed, so many seconds of work may wait, also in overload, until as many seconds after the
# replacement: a second interruption is more likely then, and clients that waited send more at once
SETTLING_S = 10.0
# that time ends when so much of the limit is used: API keys may use only their shares of it again, and not all wait
# equally long
RECOVERED_SHARE = 0.25
OVERLOAD_S = 1.0  # after the last request that did not fit, a lane is in overload for this long
# shorter than the time of a burst, in which the queue would be full
MIN_STALL_S, STALL_LATENCIES = 0.25, 8
# what waits may be computed in one batch, without a result until it ends; a batch of a slow device has not more tokens
STALL_BATCH_TOKENS = 8192
RATE_GAIN = 0.3  # weight of a new measurement
# if requests always found so much work before them, in latencies of one request without a queue, the server was busy
# all the time: two or a few clients that send one request after the other find less, as a batch takes what waits
BUSY_LATENCIES = 2
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
# before a GPU whose warm-up tells nothing has been measured
MIN_GPU_TOKENS = 1_048_576
# of what the device computed per second in its warm-up: admitted although less has been measured since, when small
# batches or the front-ends were the limit
MIN_DEVICE_S = 0.25
# requests with one text of at most so many tokens may fill a longer time than others, also on a machine with other work
SHORT_TEXT_TOKENS, SHORT_TEXTS_S = 128, 10.0
# and those with a longer one of at most so many tokens while all together are at most so many: among clients with one
# text each, the refusal of a single longer one would shorten the queue for all
MEDIUM_TEXT_TOKENS, MEDIUM_TEXTS_TOKENS = 1024, 8192
# those who send thousands of texts at a time wait rather than come back later
BULK_TIMES = LaneTimes(60.0, 15.0, 4_194_304)


class QueueLimit:
    """The limit of one lane in tokens, adapted to what the lane completes and how long its requests take.

    A server that is not busy completes what it gets, not what it could: such times never lower the rate. A burst may
    fill the queue up to a long time. Once it is full, more arrives than the server computes, and a long queue would
    only add to the latency of every request: the limit is a short time until no request is refused.
    """

    def __init__(self, times: LaneTimes, max_tokens: int, max_seconds: float | None = None) -> None:
        self.times = times
        self._initial_tokens = times.initial_tokens
        self._device_tokens = 0.0  # admitted whatever has been measured
        self.max_tokens = max_tokens
        self.max_seconds = max_seconds  # set by an option: the time in both states
        self.latency_s = 0.0  # of requests that did not wait; 0.0: none yet
        self.is_overloaded = False
        self.rate = 1.0  # tokens per second
        self.is_measured = False
        self._overloaded_until = 0.0
        self._window_started_at = self._batch_started_at = self._last_at = 0.0
        self._window_done = self._last_done = 0.0
        # in the window: a request did not fit, and the least tokens that a request found before it, up to the last
        # completion, with which the window may end, and since then
        self._was_full, self._least_queued, self.least_since = False, inf, inf
        # since an engine process has exited or does not go on, until what waited for it has been computed
        self.is_recovering = self._is_interrupted = self.is_settling = False
        self._recovered_at = self._recovery_ends_at = 0.0
        self._is_window_valid = True
        self.tokens = 0.0  # the limit
        self._update()

    def on_loaded(self, is_gpu: bool, device_tokens_per_s: float) -> None:
        """The model is loaded; the device has computed so many tokens per second in its warm-up, 0.0: not known."""
        self._device_tokens = device_tokens_per_s * MIN_DEVICE_S
        if device_tokens_per_s:
            self._initial_tokens = max(self.times.initial_tokens, device_tokens_per_s * self.times.min_burst_s)
        elif is_gpu:
            self._initial_tokens = max(self.times.initial_tokens, MIN_GPU_TOKENS)
        self._update()

    def has_room_for_few(self, tokens: int, num_queued: float, num_inputs: int) -> bool:
        """Whether a request that exceeds the limit is admitted if only few requests are in flight."""
        if num_queued + tokens <= self._device_tokens:
            return True
        if num_inputs > 1 or tokens > MEDIUM_TEXT_TOKENS or self.is_overloaded:
            return False
        if tokens > SHORT_TEXT_TOKENS and num_queued + tokens > MEDIUM_TEXTS_TOKENS:
            return False
        return not self.is_measured or num_queued + tokens <= self.rate * SHORT_TEXTS_S

    def on_interrupted(self) -> None:
        """The engine process has exited: requests wait for the next one."""
        self.is_recovering = self._is_interrupted = True
        self._recovery_ends_at = 0.0  # another interruption has a time of its own
        self._update()

    def on_resumed(self, now: float) -> None:
        """The next engine process computes requests; the time in between says nothing about its speed."""
        self._is_interrupted, self._recovered_at, self._is_window_valid = False, now, False

    def on_waiting(self, seconds: float, num_queued: float) -> bool:
        """The lane is not empty and has completed nothing for some time; return whether the engine may be stopped.

        If that takes as long as many requests without a queue, and a batch of those that wait, the engine process is
        stopped or hangs: requests wait until it goes on or is replaced. In overload the machine itself may be too busy
        to complete anything.
        """
        if self.is_overloaded:
            return False
        stall_s = self.times.min_burst_s
        if self.is_measured:
            stall_s = max(MIN_STALL_S, STALL_LATENCIES * self.latency_s)
            stall_s += min(num_queued, STALL_BATCH_TOKENS) / self.rate
        if seconds > stall_s and not self.is_recovering:
            self.is_recovering, self._is_window_valid = True, False
            self._update()
        return seconds > stall_s / 4

    def on_rate(self, rate: float) -> None:
        """Another front-end has measured the rate: to be used until this one has, which is new or has few requests."""
        if rate > self.rate:
            self.rate = rate
            self._update()

    def estimate_wait(self, tokens: float, default_s: float = 1.0) -> float:
        """Return the seconds that tokens take; the default before the rate has been measured."""
        return tokens / self.rate if self.is_measured else default_s

    def on_admitted(self, now: float, num_queued: float) -> None:
        """A request was admitted behind so many tokens."""
        if num_queued < self.least_since:
            self.least_since = num_queued
        if self.is_recovering and not self._is_interrupted:
            self._recovery_ends_at = self._recovery_ends_at or now + RECOVERY_S  # also if more arrives than is computed
            if num_queued <= self.rate * self._burst_s * RECOVERED_SHARE or now > self._recovery_ends_at:
                self.is_recovering, self._recovery_ends_at = False, 0.0
                self.is_settling = now < self._recovered_at + SETTLING_S
                self._update()
        elif self.is_settling and now >= self._recovered_at + SETTLING_S:
            self.is_settling = False
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
            self._was_full, self._least_queued, self.least_since = False, inf, inf
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
        if self.least_since < self._least_queued:
            self._least_queued = self.least_since
        self.least_since = inf
        self._last_at, self._last_done = now, num_done
        return window_ended

    def _end_window(self, now: float, num_done: float) -> None:
        seconds, num_tokens = now - self._window_started_at, num_done - self._window_done
        if self._window_started_at and num_tokens > 0:
            rate = num_tokens / seconds
            # by the known speed if that is higher: one request that waits for something else than the device, such as a
            # slow disk, must not make a server with few requests look busy
            busy_tokens = max(rate, self.rate) * BUSY_LATENCIES * self.latency_s
            is_busy = self._was_full or self._least_queued > busy_tokens
            if not self.is_measured and (is_busy or self._least_queued > 0):
                self.rate, self.is_measured = (rate if is_busy else max(rate, self.rate)), True
            elif is_busy or rate > self.rate:
                self.rate += RATE_GAIN * (rate - self.rate)
        self._window_started_at, self._window_done = now, num_done
        self._was_full, self._least_queued = False, inf
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
        elif self.is_settling:
            seconds = max(SETTLING_S, self._burst_s)
        elif self.is_overloaded:
            seconds = max(times.min_overload_s, OVERLOAD_LATENCIES * self.latency_s)
        else:
            seconds = self._burst_s
        tokens = self.rate * seconds
        if not self.is_measured:
            tokens = max(tokens, self._initial_tokens)
        elif self.max_seconds is None and not self.is_overloaded:
            tokens = max(tokens, self._device_tokens)
        self.tokens = min(tokens, self.max_tokens)
