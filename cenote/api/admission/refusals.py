"""Refused requests: their errors, when to retry, and how they are counted and logged."""

from __future__ import annotations

import logging
import random
import time

from cenote.api.admission.counters import REASONS, REFUSED, Counters, RefusalReason, find_model_column
from cenote.errors import BodyTooLarge, DeadlineExceeded, OutOfResources, Overloaded, PoolingError

logger = logging.getLogger("cenote")

LOG_INTERVAL_S = 10.0
MIN_RETRY_S, MAX_RETRY_S = 0.05, 60.0
MAX_JITTER = 1.0  # of the time to wait: clients that were refused together do not return together


class Refusals:
    """Counts refusals by reason, and logs at most one line per reason and `LOG_INTERVAL_S`."""

    def __init__(self, counters: Counters, slot: int) -> None:
        self.counters = counters
        self._column = find_model_column(slot) + REFUSED
        self._logged_at: dict[RefusalReason, float] = {}
        self._num_unlogged: dict[RefusalReason, int] = {}

    def count(self, reason: RefusalReason, message: str) -> None:
        self.counters.own[self._column + REASONS.index(reason)] += 1
        now = time.monotonic()
        self._num_unlogged[reason] = num_refused = self._num_unlogged.get(reason, 0) + 1
        if now - self._logged_at.get(reason, -LOG_INTERVAL_S) >= LOG_INTERVAL_S:
            self._logged_at[reason] = now
            self._num_unlogged[reason] = 0
            logger.warning("refused %d requests (%s); the last one: %s", num_refused, reason, message)

    def overloaded(self, reason: RefusalReason, message: str, wait_s: float) -> Overloaded:
        """Return the error of a request that may succeed after about `wait_s`."""
        self.count(reason, message)
        error = Overloaded(message)
        wait_s = min(max(wait_s, MIN_RETRY_S), MAX_RETRY_S)
        error.retry_after_s = wait_s * (1 + random.random() * MAX_JITTER)
        return error

    def out_of_memory(self, message: str) -> OutOfResources:
        self.count("memory", message)
        return OutOfResources(message)

    def too_large(self, reason: RefusalReason, message: str) -> PoolingError:
        """Return the error of a request that can never succeed."""
        self.count(reason, message)
        return BodyTooLarge(message)

    def too_late(self, message: str) -> DeadlineExceeded:
        self.count("deadline", message)
        return DeadlineExceeded(message)
