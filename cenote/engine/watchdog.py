"""Watchdog: stops the engine if a batch does not finish in time, for example because the device hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from cenote.errors import EngineHung


class Watchdog:
    """A thread that checks periodically how long the current batch has been running."""

    def __init__(
        self, step_started_at: Callable[[], float | None], timeout_s: float, on_timeout: Callable[[BaseException], None]
    ) -> None:
        self.step_started_at = step_started_at
        self.timeout_s = timeout_s
        self.on_timeout = on_timeout
        self.stop_event = threading.Event()
        self.thread = threading.Thread(target=self._run, name="cenote-watchdog", daemon=True)

    def stop(self) -> None:
        self.stop_event.set()

    def _run(self) -> None:
        while not self.stop_event.wait(timeout=min(1.0, self.timeout_s / 4)):
            started_at = self.step_started_at()
            if started_at is not None and time.monotonic() - started_at > self.timeout_s:
                self.on_timeout(
                    EngineHung(
                        f"a batch did not finish within {self.timeout_s:g} s (step_timeout_s); the engine is stopped"
                    )
                )
                return
