"""The engine thread: schedule, run, deliver; one batch ahead of a device that works by itself."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from cenote.engine.batch_bisect import isolate_failures, try_run
from cenote.engine.engine_metrics import EngineMetrics
from cenote.engine.execution.executor import Executor
from cenote.engine.result_delivery import BatchOutput
from cenote.engine.scheduler import Scheduler
from cenote.engine.sequence_group import GroupSlice, ScheduledBatch, SequenceGroup

logger = logging.getLogger("cenote")


class EngineLoop:
    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        metrics: EngineMetrics,
        on_exit: Callable[[BaseException | None], None],
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.metrics = metrics
        self.on_exit = on_exit  # told once, with what killed the thread if anything did
        self.condition = threading.Condition()  # guards the scheduler
        self.step_started_at: float | None = None  # when the batch now running was started
        self.is_stopping = False
        self.thread = threading.Thread(target=self._run, name="cenote-engine", daemon=True)

    def submit(self, groups: Iterable[SequenceGroup]) -> None:
        with self.condition:
            self.scheduler.add(groups)
            self.condition.notify_all()

    def wait_for_capacity(self, max_waiting_tokens: int) -> bool:
        """Block while too much waits; False when the loop ends instead."""
        with self.condition:
            self.condition.wait_for(lambda: self.is_stopping or self.scheduler.num_waiting_tokens < max_waiting_tokens)
            return not self.is_stopping

    def stop(self) -> None:
        with self.condition:
            self.is_stopping = True
            self.scheduler.clear()
            self.condition.notify_all()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._run_batches()
        except BaseException as caught:  # nobody who waits may be left without an answer
            error = caught
            logger.exception("the engine thread died")
        finally:
            self.on_exit(error)

    def _run_batches(self) -> None:
        ahead: tuple[ScheduledBatch, Callable[[], BatchOutput]] | None = None
        while (batch := self._next_batch(block=ahead is None)) is not None:
            self.step_started_at = time.monotonic()
            started = self._start_batch(batch) if len(batch) else None
            if ahead is not None:
                self._finish_batch(*ahead)
            if started is not None and not self.executor.is_async:
                self._finish_batch(*started)
                started = None
            ahead = started
            del batch, started  # while nothing runs, nothing of what ran is kept
            self.step_started_at = None if ahead is None else time.monotonic()

    def _next_batch(self, *, block: bool) -> ScheduledBatch | None:
        """The next batch; empty when nothing waits and there is other work; None at the end."""
        with self.condition:
            while not self.is_stopping:
                parts = self.scheduler.next_batch()
                self.condition.notify_all()  # there is room for more, also when all that waited was abandoned
                if parts or not block:
                    found = [GroupSlice(*part) for part in parts]  # type: ignore[arg-type]  # lots are what waits
                    return ScheduledBatch(
                        sorted(found, key=GroupSlice.seq_len)
                    )  # kernels take neighbours of like lengths together
                if not len(self.scheduler):
                    self.condition.wait()
        return None

    def _start_batch(self, batch: ScheduledBatch) -> tuple[ScheduledBatch, Callable[[], BatchOutput]] | None:
        now = time.monotonic()
        for receiver in {part.group.receiver for part in batch.slices}:
            receiver.mark_started(now)
        self.metrics.on_batch(len(batch), batch.num_tokens)
        try:
            return batch, self.executor.start(batch)
        except Exception as error:
            failure = error
        # not while the first error is handled, or every later one drags its traceback along
        isolate_failures(batch, self._run_batch, failure)
        del failure  # it holds this frame, which holds it
        return None

    def _finish_batch(self, batch: ScheduledBatch, wait: Callable[[], BatchOutput]) -> None:
        failure = try_run(batch, lambda _: wait())
        if failure is not None:
            isolate_failures(batch, self._run_batch, failure)

    def _run_batch(self, batch: ScheduledBatch) -> BatchOutput:
        self.step_started_at = time.monotonic()
        return self.executor.start(batch)()
