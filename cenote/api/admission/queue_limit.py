"""QueueLimit: how many tokens may be in flight in a lane, by the rate that the engine measures."""

from __future__ import annotations

from dataclasses import dataclass

from cenote.api.admission.engine_speed import RECOVERY_S, EngineSpeed


@dataclass(frozen=True, slots=True)
class LaneTimes:
    """Bounds of the time that requests of a lane wait."""

    normal_s: float
    overload_s: float
    initial_tokens: float  # the limit before the rate is known


# a quarter of a second: tens of clients that send one request after the other are not refused, however fast the server
INTERACTIVE_TIMES = LaneTimes(1.0, 0.25, 16384)
# those who send thousands of texts at a time wait rather than come back later
BULK_TIMES = LaneTimes(60.0, 15.0, 4_194_304)

OVERLOAD_S = 1.0
DRAINED_SHARE = 0.25
BACKLOG_FACTOR = 2.0  # what was lost with a process is computed again, and nothing is answered until a first batch is


class QueueLimit:
    """The limit of one lane, in seconds of work at the rate of the engine.

    - Normal: `normal_s`, which a burst may fill.
    - Overloaded, from the first request that does not fit until `OVERLOAD_S` after the last one: `overload_s`. More
      arrives than the engine computes, and a long queue would only add to the latency of every request.

    While an engine process does not compute, because it has exited or hangs, twice as much more may wait as it would
    have computed in the meantime, up to `RECOVERY_S`: none of it is refused. This ends when the queue has drained
    to `DRAINED_SHARE` of the limit, or `RECOVERY_S` after the engine computes again.
    """

    def __init__(self, times: LaneTimes, max_tokens: int, max_seconds: float | None = None) -> None:
        self.times = times
        self.max_tokens = max_tokens
        self.max_seconds = max_seconds  # set by an option: the time in both states
        self.overloaded_until = 0.0
        self._drained_at = 0.0

    def compute_tokens(self, now: float, num_queued: float, speed: EngineSpeed) -> float:
        """Return how many tokens may be in flight, of which so many are."""
        times, rate = self.times, speed.tokens_per_s
        if (seconds := self.max_seconds) is None:
            seconds = times.overload_s if now < self.overloaded_until else times.normal_s
        limit_s = seconds
        if self._drained_at < speed.stopped_until and (stopped_s := speed.compute_stopped_s(now)):
            if num_queued <= rate * seconds * DRAINED_SHARE:
                self._drained_at = now  # while the engine is stopped, the next report is later
            limit_s = min(seconds + BACKLOG_FACTOR * stopped_s, RECOVERY_S)
        max_tokens = rate * limit_s if rate else max(seconds, times.initial_tokens) * limit_s / seconds
        return min(max_tokens, self.max_tokens)

    def on_full(self, now: float) -> None:
        """A request did not fit."""
        self.overloaded_until = now + OVERLOAD_S
