"""Heartbeat of a process of the server: timestamps in memory that another one reads without its help."""

from __future__ import annotations

import asyncio
import mmap
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from cenote.utils.shared_memory import make_shared_memory

INTERVAL_S = 0.1
POLL_INTERVAL_S = 0.2
# the thread that writes heartbeats needs the interpreter for a moment every 0.1 s
HEARTBEAT_TIMEOUT_S = 5.0
# a longer time between two turns of the event loop is reported as its hang; after the second one, a process that only
# serves HTTP is replaced with all of its connections
LOOP_LAG_S, LOOP_TIMEOUT_S = 1.0, 15.0
# float64: time of the last beat; stage that is busy, since when; tokens per second of an engine, and seconds for which
# its device may hang
SLOTS = 5
STAGES = ("", "device", "tokenizer", "image preprocessing", "plugin", "event loop")

BusyStage = tuple[str, float] | None  # a name in STAGES and the monotonic time since when
Speed = tuple[float, float]  # of an engine: tokens per second, and seconds for which its device may hang


class Beat(NamedTuple):
    age_s: float  # since the last beat
    stage: str  # the stage that has been busy for longest with one piece of work; empty if all are idle
    busy_s: float
    tokens_per_s: float = 0.0  # of an engine; 0.0: not known
    late_s: float = 0.0  # for which its device may hang

    def describe_hang(self, min_s: float = 0.0) -> str | None:
        """Return what is wrong with a process that reports only stages that hang; None while it works."""
        if self.age_s > max(min_s, HEARTBEAT_TIMEOUT_S):
            return f"gave no sign of life for {self.age_s:.1f} s"
        if self.stage and self.busy_s > max(min_s, LOOP_TIMEOUT_S):
            return f"had its {self.stage} blocked for {self.busy_s:.1f} s"
        return None


def make_heartbeat_file() -> int:
    """Return the descriptor of shared memory for one heartbeat: it vanishes with the last process that has it."""
    return make_shared_memory(8 * SLOTS)


class HeartbeatReader:
    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, 8 * SLOTS)
        self._slots = memoryview(self._memory).cast("d")
        if not self._slots[0]:
            self._slots[0] = time.monotonic()  # a process that hangs before its first beat is noticed, too

    def close(self) -> None:
        self._slots.release()
        self._memory.close()

    def read(self) -> Beat:
        beat, stage, since, *speed = self._slots
        now = time.monotonic()
        return Beat(now - beat, STAGES[int(stage)], now - since if stage else 0.0, *speed)


class HeartbeatWriter:
    """A thread that writes the time, the busy stage and the speed of an engine.

    It needs the interpreter for a moment only, and no event loop: a beat that stops means that the process is stopped
    or that native code holds the interpreter.
    """

    def __init__(
        self, fd: int, find_busy_stage: Callable[[], BusyStage], measure_speed: Callable[[], Speed] = lambda: (0.0, 0.0)
    ) -> None:
        self._slots = memoryview(mmap.mmap(fd, 8 * SLOTS)).cast("d")
        self._find_busy_stage = find_busy_stage
        self._measure_speed = measure_speed
        self.thread = threading.Thread(target=self._run, name="cenote-heartbeat", daemon=True)

    def _run(self) -> None:
        while True:
            busy = self._find_busy_stage()
            self._slots[1] = 0.0  # never a stage with the time of another
            if busy is not None:
                self._slots[2] = busy[1]
                self._slots[1] = STAGES.index(busy[0])
            self._slots[3], self._slots[4] = self._measure_speed()
            self._slots[0] = time.monotonic()
            time.sleep(INTERVAL_S)


class LoopClock:
    """The last turn of an event loop, which the heartbeat thread reads."""

    def __init__(self) -> None:
        self.last_turn = time.monotonic()

    def turn(self) -> None:
        """To be called in the event loop, several times a second."""
        self.last_turn = time.monotonic()

    def find_busy_stage(self) -> BusyStage:
        last_turn = self.last_turn
        return ("event loop", last_turn) if time.monotonic() - last_turn > LOOP_LAG_S else None


async def read_beats(reader: HeartbeatReader) -> AsyncIterator[Beat]:
    """Yield the state several times a second; not if this process was late, as then the other probably was, too."""
    last_poll = time.monotonic()
    while True:
        await asyncio.sleep(POLL_INTERVAL_S)
        now = time.monotonic()
        was_late, last_poll = now - last_poll > HEARTBEAT_TIMEOUT_S / 2, now
        if not was_late:
            yield reader.read()
