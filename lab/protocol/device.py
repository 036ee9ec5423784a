"""The simulated device of an engine process: batches of inputs, one after the other, in a table that outlives it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import numpy as np

from cenote.api.wire.device_table import OnDevice

Tokens = tuple[int, ...]

MAX_BATCH_INPUTS = 4
# inputs that begin with one of these token ids: the process crashes, the device hangs, the result is not a number
CRASHES, HANGS, NOT_A_NUMBER = 7001, 7002, 7003


class Item(NamedTuple):
    """An input that waits or runs."""

    link: Any  # that it came from
    call_id: int
    number: int  # among the inputs of its call
    tokens: Tokens
    deadline_at: float


@dataclass(slots=True)
class Batch:
    items: Sequence[Item]
    is_isolated: bool


def compute(tokens: Tokens) -> np.ndarray[Any, Any]:
    """Return the result of an input, which no other input has."""
    return np.array((len(tokens), tokens[0], tokens[-1], sum(tokens)), np.float32)


class SimulatedDevice:
    """Runs one batch, and has the next one ahead if it is asynchronous; an isolated batch is there alone."""

    def __init__(
        self,
        random: Random,
        call_later: Callable[..., None],
        on_started: Callable[[Batch], None],
        on_computed: Callable[[Batch], None],
        is_async: bool,
    ) -> None:
        """`call_later`: of its process."""
        self.random = random
        self.call_later = call_later
        self.on_started = on_started
        self.on_computed = on_computed
        self.depth = 2 if is_async else 1
        self.max_batch_s = random.choice((0.02, 0.02, 0.3))
        self.waiting: deque[Item] = deque()
        self.isolated: deque[Item] = deque()
        self.running: deque[Batch] = deque()
        self.is_hung = False
        self._num_finished = 0

    def add(self, items: Sequence[Item], is_isolated: bool) -> None:
        (self.isolated if is_isolated else self.waiting).extend(items)
        self._start_next()

    def drop(self, is_dropped: Callable[[Item], bool]) -> None:
        """Forget what has not run."""
        for queue in (self.waiting, self.isolated):
            kept = [item for item in queue if not is_dropped(item)]
            queue.clear()
            queue.extend(kept)

    def read_table(self) -> OnDevice:
        calls = [(item.call_id, item.number) for batch in self.running for item in batch.items]
        is_isolated = len(self.running) == 1 and self.running[0].is_isolated
        return OnDevice(calls, is_isolated, self._num_finished)

    @property
    def alone(self) -> Tokens | None:
        """The input that is alone on the device because it was there when another process exited."""
        is_isolated = len(self.running) == 1 and self.running[0].is_isolated
        return self.running[0].items[0].tokens if is_isolated else None

    def _start_next(self) -> None:
        while len(self.running) < self.depth:
            if self.running and (self.running[0].is_isolated or self.isolated):
                return
            queue, is_isolated = (self.isolated, True) if self.isolated else (self.waiting, False)
            count = 1 if is_isolated else min(len(queue), MAX_BATCH_INPUTS)
            if not count:
                return
            self.running.append(batch := Batch([queue.popleft() for _ in range(count)], is_isolated))
            self.on_started(batch)
            if len(self.running) == 1:
                self._compute(batch)

    def _compute(self, batch: Batch) -> None:
        self.call_later(self.random.uniform(0.001, self.max_batch_s), self._on_computed, batch)

    def _on_computed(self, batch: Batch) -> None:
        if self.is_hung:
            return
        self.on_computed(batch)
        # the process may exit between the two
        self.call_later(self.random.choice((0.0, 0.0, 0.001)), self._finish, batch)

    def _finish(self, batch: Batch) -> None:
        if self.is_hung:
            return
        self.running.popleft()
        self._num_finished += 1
        if self.running:
            self._compute(self.running[0])
        self._start_next()
