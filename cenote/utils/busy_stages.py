"""Which stages of the engine are busy, and since when: a stage that does not finish is how a hang is noticed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager


class BusyStages:
    """Work in progress, by stage; threads add and remove it without a lock, as single operations on a dict."""

    def __init__(self) -> None:
        self._work: dict[int, tuple[str, float]] = {}
        self._ids = itertools.count()

    @contextmanager
    def track(self, stage: str) -> Iterator[None]:
        """Count the body as one piece of work of a stage."""
        work_id = next(self._ids)
        self._work[work_id] = (stage, time.monotonic())
        try:
            yield
        finally:
            del self._work[work_id]

    def find_oldest(self) -> tuple[str, float] | None:
        """Return the stage of the oldest piece of work and its start by the monotonic clock; None if all are idle."""
        work = list(self._work.values())
        return min(work, key=lambda item: item[1]) if work else None
