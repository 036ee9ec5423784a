"""Where the time of one short text goes, from the call of the engine to the result: tokenizer, model, engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from cenote.engine.engine import PoolingEngine
from cenote.engine.execution.executor import Executor
from cenote.engine.result_delivery import BatchOutput
from cenote.engine.sequence_group import ScheduledBatch
from cenote.protocol.params import Task
from cenote.protocol.requests import PoolRequest


@dataclass(frozen=True, slots=True)
class SingleTextTime:
    """Seconds of one text; the median of several."""

    total: float
    tokenizer: float
    model: float  # from its arrays on the host to its result on the host

    @property
    def engine(self) -> float:
        """What is left: checks, rendering, scheduling, delivery and metrics."""
        return max(0.0, self.total - self.tokenizer - self.model)


class TimedExecutor:
    """Sums the time that an executor works or is waited for."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.is_async = executor.is_async
        self.seconds = 0.0

    def start(self, batch: ScheduledBatch) -> Callable[[], BatchOutput]:
        began = time.perf_counter()
        wait = self.executor.start(batch)
        self.seconds += time.perf_counter() - began

        def timed_wait() -> BatchOutput:
            began = time.perf_counter()
            output = wait()
            self.seconds += time.perf_counter() - began
            return output

        return timed_wait

    def is_prepared(self, batch: ScheduledBatch) -> bool:
        return self.executor.is_prepared(batch)


def measure_single_texts(engine: PoolingEngine, task: Task, texts: Sequence[str]) -> SingleTextTime:
    """Compute the texts one after the other; nobody else may use the engine meanwhile."""
    executor = engine.core.loop.executor
    timed = engine.core.loop.executor = TimedExecutor(executor)
    totals, in_model, in_tokenizer = [], [], []
    try:
        for text in texts:
            request = PoolRequest(task=task, inputs=[text], prompt="")
            timed.seconds = 0.0
            began = time.perf_counter()
            engine.pool_sync(request)
            totals.append(time.perf_counter() - began)
            in_model.append(timed.seconds)
            began = time.perf_counter()
            engine.tokenizer.encode([text])
            in_tokenizer.append(time.perf_counter() - began)
    finally:
        engine.core.loop.executor = executor
    return SingleTextTime(median(totals), median(in_tokenizer), median(in_model))
