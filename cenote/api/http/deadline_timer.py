"""A timer whose deadline moves with every request at almost no cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf


class DeadlineTimer:
    """Call `on_expired` once the deadline passes.

    The timer of the event loop stays where it is when the deadline is postponed; it then starts anew when it fires.
    """

    __slots__ = ("deadline", "handle", "loop", "on_expired")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_expired: Callable[[], None]) -> None:
        self.loop = loop
        self.on_expired = on_expired
        self.handle: asyncio.TimerHandle | None = None
        self.deadline = inf

    def set(self, seconds: float) -> None:
        """Expire after so many seconds, instead of the previous deadline."""
        self.deadline = deadline = self.loop.time() + seconds
        if self.handle is None:
            self.handle = self.loop.call_at(deadline, self._check)
        elif deadline < self.handle.when():
            self.handle.cancel()
            self.handle = self.loop.call_at(deadline, self._check)

    def clear(self) -> None:
        self.deadline = inf

    def cancel(self) -> None:
        """Stop for good, and drop the reference to the owner, so that both are freed without garbage collection."""
        self.deadline = inf
        self.on_expired = _do_nothing
        if self.handle is not None:
            self.handle.cancel()
            self.handle = None

    def _check(self) -> None:
        self.handle = None
        if self.deadline == inf:
            return
        # the event loop rounds its timers to milliseconds and may call a little early
        if self.loop.time() < self.deadline - 0.002:
            self.handle = self.loop.call_at(self.deadline, self._check)
        else:
            self.deadline = inf
            self.on_expired()


def _do_nothing() -> None:
    pass
