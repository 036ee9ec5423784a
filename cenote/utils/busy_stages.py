"""Which stages of the engine are busy, and since when: a stage that does not finish is how a hang is noticed."""

from __future__ import annotations

import itertools
import time


class BusyStages:
    """Work in progress, by stage; threads add and remove it without a lock, as single operations on a dict."""

    def __init__(self) -> None:
        self._work: dict[int, tuple[str, float]] = {}
        self._ids = itertools.count()

    def track(self, stage: str) -> TrackedWork:
        """Count the body of a `with` statement as one piece of work of a stage."""
        return TrackedWork(self._work, next(self._ids), stage)

    def find_oldest(self) -> tuple[str, float] | None:
        """Return the stage of the oldest piece of work and its start by the monotonic clock; None if all are idle."""
        work = list(self._work.values())
        return min(work, key=lambda item: item[1]) if work else None


class TrackedWork:
    """Adds one piece of work and removes it; a class, as generators take longer in the path of each short text."""

    __slots__ = ("stage", "work", "work_id")

    def __init__(self, work: dict[int, tuple[str, float]], work_id: int, stage: str) -> None:
        self.work, self.work_id, self.stage = work, work_id, stage

    def __enter__(self) -> None:
        self.work[self.work_id] = (self.stage, time.monotonic())

    def __exit__(self, *error: object) -> None:
        del self.work[self.work_id]
