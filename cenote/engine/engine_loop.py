"""EngineLoop: the engine thread schedules, runs and delivers batches; asynchronous devices get one batch ahead."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol, cast

from cenote.engine.batch_bisect import isolate_failures, run_in_halves, try_run
from cenote.engine.engine_metrics import EngineMetrics
from cenote.engine.execution.device_errors import check_device_is_usable, is_out_of_memory
from cenote.engine.execution.executor import Executor
from cenote.engine.isolated_queue import IsolatedQueue
from cenote.engine.lane_queue import Slice
from cenote.engine.result_delivery import BatchOutput
from cenote.engine.scheduler import Scheduler
from cenote.engine.sequence_group import GroupSlice, ScheduledBatch, SequenceGroup

logger = logging.getLogger("cenote")

MIN_TOKEN_BUDGET = 256  # smaller batches would not help: single sequences may be longer


class BatchRecorder(Protocol):
    """Remembers what is on the device outside of this process, which a batch may crash."""

    def record(self, batch: ScheduledBatch) -> None:
        """Remember a batch in its slot; at most one batch of each of two slots is on the device."""
        ...

    def clear(self, slot: int) -> None:
        """Forget the batch in a slot: it has left the device."""
        ...


class NoRecorder:
    """Remembers nothing: callers in the same process do not survive a crash either."""

    def record(self, batch: ScheduledBatch) -> None: ...

    def clear(self, slot: int) -> None: ...


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
        self.recorder: BatchRecorder = NoRecorder()
        self.isolated = IsolatedQueue()
        self.on_exit = on_exit  # called once when the thread ends, with the exception if it crashed
        self.on_batch_taken: Callable[[], None] = lambda: None  # called when the queue may have become shorter
        self.condition = threading.Condition()  # guards the scheduler
        self.step_started_at: float | None = None  # monotonic start time of the running batch
        self.is_stopping = False
        self._slot = 0  # of the last batch, for the recorder
        self.thread = threading.Thread(target=self._run, name="cenote-engine", daemon=True)

    def submit(self, groups: Iterable[SequenceGroup]) -> None:
        with self.condition:
            self.scheduler.add(self.isolated.take_isolated(groups))
            self.condition.notify_all()

    def stop(self) -> None:
        with self.condition:
            self.is_stopping = True
            self.scheduler.clear()
            self.isolated.clear()
            self.condition.notify_all()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._run_batches()
        except BaseException as caught:  # fail all requests in flight: callers must not block forever
            error = caught
            logger.exception("the engine thread crashed")
        finally:
            self.on_exit(error)

    def _run_batches(self) -> None:
        in_flight: tuple[ScheduledBatch, Callable[[], BatchOutput]] | None = None
        while (batch := self._next_batch(block=in_flight is None)) is not None:
            self.step_started_at = time.monotonic()
            if batch.is_isolated and in_flight is not None:
                self._finish_batch(*in_flight)
                in_flight = None
            started = self._start_batch(batch) if len(batch) else None
            if in_flight is not None:
                self._finish_batch(*in_flight)
            if started is not None and (batch.is_isolated or not self.executor.is_async):
                self._finish_batch(*started)
                started = None
            in_flight = started
            del batch, started  # free the memory of the batch while waiting for the next one
            self.step_started_at = None if in_flight is None else time.monotonic()

    def _next_batch(self, *, block: bool) -> ScheduledBatch | None:
        """Return the next batch; an empty one if the queue is empty and `block` is False; None when stopping."""
        with self.condition:
            while not self.is_stopping:
                if (alone := self.isolated.next_input(others_wait=len(self.scheduler) > 0)) is not None:
                    return ScheduledBatch([alone], is_isolated=True)
                scheduled = self.scheduler.next_batch()
                self._fail_expired()
                self.on_batch_taken()  # also if there is no batch because all requests were aborted
                if scheduled or not block:
                    slices = [part for item in scheduled for part in _to_group_slice(item).without_cancelled()]
                    # sorted: kernels process consecutive sequences of equal length together
                    return ScheduledBatch(sorted(slices, key=GroupSlice.seq_len))
                if not len(self.scheduler) and not len(self.isolated):
                    self.condition.wait()
        return None

    def _fail_expired(self) -> None:
        now = time.monotonic()
        for group in self.scheduler.take_expired():
            cast(SequenceGroup, group).receiver.expire(now)

    def _start_batch(self, batch: ScheduledBatch) -> tuple[ScheduledBatch, Callable[[], BatchOutput]] | None:
        self._slot = batch.slot = 1 - self._slot  # that of the batch before is perhaps still in use
        self.recorder.record(batch)
        now = batch.times.started_at = time.monotonic()
        for receiver in {group_slice.group.receiver for group_slice in batch.slices}:
            receiver.mark_started(now)
        self.metrics.on_batch(len(batch), batch.num_tokens)
        try:
            return batch, self.executor.start(batch)
        except Exception as error:
            check_device_is_usable(error)
            failure = error
        # outside of the except block: otherwise every later error would be chained to the first
        self._retry(batch, failure)
        del failure  # break the reference cycle through its traceback and this frame
        return None

    def _finish_batch(self, batch: ScheduledBatch, wait: Callable[[], BatchOutput]) -> None:
        failure = try_run(batch, lambda _: self._count_tokens(batch, wait()))
        if failure is None:
            self.recorder.clear(batch.slot)
            device_s = self.metrics.on_computed(batch.times)
            self.scheduler.throughput.record(batch.num_tokens, batch.num_seqs, device_s)
        else:
            self._retry(batch, failure)

    def _retry(self, batch: ScheduledBatch, failure: Exception) -> None:
        run_part = partial(self._run_part, batch)
        if is_out_of_memory(failure):
            self._reduce_token_budget(batch, failure)
            run_in_halves(batch, run_part)
        else:
            isolate_failures(batch, run_part, failure)
        self.recorder.clear(batch.slot)

    def _reduce_token_budget(self, batch: ScheduledBatch, error: Exception) -> None:
        """Make all later batches smaller: this one did not fit the memory."""
        with self.condition:
            budget = max(MIN_TOKEN_BUDGET, min(self.scheduler.token_budget, batch.num_tokens) // 2)
            self.scheduler.token_budget = min(self.scheduler.token_budget, budget)
        self.metrics.on_out_of_memory()
        logger.warning(
            "out of memory with a batch of %d tokens; it is run in parts, and later batches have at most %d tokens "
            "(max_num_batched_tokens): %s",
            batch.num_tokens,
            self.scheduler.token_budget,
            (str(error) or type(error).__name__).splitlines()[0],
        )

    def _run_part(self, failed: ScheduledBatch, batch: ScheduledBatch) -> BatchOutput:
        """Run part of a batch that has failed."""
        batch.slot, batch.is_isolated = failed.slot, failed.is_isolated
        self.recorder.record(batch)
        self.step_started_at = batch.times.started_at = time.monotonic()
        return self._count_tokens(batch, self.executor.start(batch)())

    def _count_tokens(self, batch: ScheduledBatch, output: BatchOutput) -> BatchOutput:
        """Count what the model has read, before the callers get their results."""
        num_failed = sum(int(batch.inputs.lengths[index]) for index in output.failed_indices)
        self.metrics.on_tokens_computed(by=batch.num_tokens - num_failed)
        return output


def _to_group_slice(item: Slice) -> GroupSlice:
    group, start, end = item
    return GroupSlice(cast(SequenceGroup, group), start, end)
