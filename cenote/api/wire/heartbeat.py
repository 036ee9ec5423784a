"""Heartbeat of the engine process: timestamps in memory that the supervisor reads without its help."""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from cenote.utils.shared_memory import make_shared_memory

INTERVAL_S = 0.1
SLOTS = 3  # float64: time of the last beat, stage that is busy, since when
STAGES = ("", "device", "tokenizer", "image preprocessing", "plugin", "event loop")

BusyStage = tuple[str, float] | None  # a name in STAGES and the monotonic time since when


class Beat(NamedTuple):
    age_s: float  # since the last beat
    stage: str  # the stage that has been busy for longest with one piece of work; empty if all are idle
    busy_s: float


def make_heartbeat_file() -> int:
    """Return the descriptor of shared memory for one heartbeat: it vanishes with the last process that has it."""
    return make_shared_memory(8 * SLOTS)


class HeartbeatReader:
    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, 8 * SLOTS)
        self._slots = memoryview(self._memory).cast("d")

    def close(self) -> None:
        self._slots.release()
        self._memory.close()

    def read(self) -> Beat | None:
        """Return the current state; None before the first beat."""
        beat, stage, since = self._slots
        if not beat:
            return None
        now = time.monotonic()
        return Beat(now - beat, STAGES[int(stage)], now - since if stage else 0.0)


class HeartbeatWriter:
    """A thread that writes the time and the busy stage.

    It needs the interpreter for a moment only, and no event loop: a beat that stops means that the process is stopped
    or that native code holds the interpreter.
    """

    def __init__(self, fd: int, find_busy_stage: Callable[[], BusyStage]) -> None:
        self._slots = memoryview(mmap.mmap(fd, 8 * SLOTS)).cast("d")
        self._find_busy_stage = find_busy_stage
        self.thread = threading.Thread(target=self._run, name="cenote-heartbeat", daemon=True)

    def _run(self) -> None:
        while True:
            busy = self._find_busy_stage()
            self._slots[1] = 0.0  # never a stage with the time of another
            if busy is not None:
                self._slots[2] = busy[1]
                self._slots[1] = STAGES.index(busy[0])
            self._slots[0] = time.monotonic()
            time.sleep(INTERVAL_S)
