"""Sees to it that nobody waits for a device that never answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from cenote.errors import EngineStopped


class Watchdog:
    """Looks every now and then how long the running batch has been running."""

    def __init__(
        self, began: Callable[[], float | None], limit_s: float, give_up: Callable[[BaseException], None]
    ) -> None:
        self.began = began
        self.limit_s = limit_s
        self.give_up = give_up
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, name="cenote-watchdog", daemon=True)

    def stop(self) -> None:
        self.ended.set()

    def _run(self) -> None:
        while not self.ended.wait(timeout=min(1.0, self.limit_s / 4)):
            began = self.began()
            if began is not None and time.monotonic() - began > self.limit_s:
                self.give_up(EngineStopped(f"a batch did not finish in {self.limit_s:g} s; the engine is given up"))
                return
