"""EngineSpeed: how fast the engines of a model compute, as they measure it themselves, and whether they do."""

from __future__ import annotations

import math
from typing import NamedTuple

from cenote.api.admission.counters import SPEED, Counters, find_model_column

RECOVERY_S = 60.0  # what waits while an engine process is replaced or hangs may take this long: it is not refused


class EngineSpeed(NamedTuple):
    tokens_per_s: float = 0.0  # of all replicas while enough waits; 0.0: not known yet
    stopped_at: float = 0.0  # monotonic time until which one of them has exited or hung; infinite while all have exited
    stopped_s: float = 0.0  # what may wait for that, in seconds of work

    @classmethod
    def read(cls, counters: Counters, slot: int) -> EngineSpeed:
        return cls(*counters.read_speed(find_model_column(slot) + SPEED))

    def estimate_wait(self, tokens: float, default_s: float = 1.0) -> float:
        """Return the seconds that tokens take; the default before the rate is known."""
        return tokens / self.tokens_per_s if self.tokens_per_s else default_s


class SpeedReport:
    """Writes the speed for all front-ends, where the engines of a model are managed."""

    def __init__(self, slot: int) -> None:
        self._column = find_model_column(slot) + SPEED
        self._stopped_at = self._stopped_s = 0.0

    def write(
        self, counters: Counters, now: float, tokens_per_s: float, stopped_s: float = 0.0, is_lost: bool = False
    ) -> None:
        """`stopped_s` above 0: an engine has not computed until now, for so long or for as long as that may take.

        `is_lost`: all of them have exited, and it is not known when the next one computes.
        """
        if stopped_s:
            is_recovering = now < self._stopped_at + RECOVERY_S
            self._stopped_s = min(RECOVERY_S, max(stopped_s, self._stopped_s if is_recovering else 0.0))
            self._stopped_at = now
        stopped_at = math.inf if is_lost else self._stopped_at
        counters.write_speed(self._column, (tokens_per_s, stopped_at, self._stopped_s))
