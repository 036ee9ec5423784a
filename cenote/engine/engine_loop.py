"""EngineLoop: the engine thread schedules, runs and delivers batches; asynchronous devices get one batch ahead."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
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
from cenote.engine.throughput import EngineRate

logger = logging.getLogger("cenote")

MIN_TOKEN_BUDGET = 256  # smaller batches would not help: single sequences may be longer
# larger batches take so long that the time in which the engine thread wakes up does not matter
MAX_TOKENS_AT_ONCE = 2048

Wait = Callable[[], BatchOutput]


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
        self.rate = EngineRate(getattr(executor, "initial_tokens_per_s", 0.0))
        self.num_on_device = 0  # tokens of batches that were started and whose results are not on the host
        self.is_stopping = False
        self.is_waiting = False  # the engine thread waits for sequences, and nothing is on the device
        self._is_elsewhere = False  # a thread that has submitted a batch starts or runs it
        # a batch that the engine thread continues with: such a thread has taken it, and started it (or failed to) if it
        # was prepared; or it was interrupted while it ran it
        self._handed_over: tuple[ScheduledBatch, Wait | Exception | None] | None = None
        self._slot = 0  # of the last batch, for the recorder
        self.thread = threading.Thread(target=self._run, name="cenote-engine", daemon=True)

    def submit(self, groups: Sequence[SequenceGroup]) -> None:
        with self.condition:
            if len(groups) == 1 and self._can_skip_queue(groups[0]):
                self.is_waiting = False
                batch = self._prepare(self._take_alone(groups[0]))
            else:
                self.scheduler.add(self.isolated.take_isolated(groups))
                batch = self._take_prepared() if self.is_waiting and self.executor.is_async else None
            if batch is None:
                self.condition.notify_all()
                return
        self._start_here(batch)

    def run_here(self, groups: Sequence[SequenceGroup]) -> None:
        """Run sequences in this thread, which waits for the results anyway; queue them unless the engine is idle.

        Waking up the engine thread, and by it this one, would take longer than all other steps of a short text. The
        watchdog still stops the engine if the batch hangs, but cannot free this thread.
        """
        batch: ScheduledBatch | None = None
        is_done = False
        try:
            with self.condition:
                batch = self._take_for_caller(groups)
                if batch is None:
                    self.condition.notify_all()
                    return
                self._is_elsewhere, self.step_started_at = True, time.monotonic()
            if len(batch) and (started := self._start_batch(batch)) is not None:
                self._finish_batch(*started)
            is_done = True
        finally:
            if batch is not None:
                with self.condition:
                    self.step_started_at, self._is_elsewhere = None, False
                    if not is_done:  # such as by Ctrl-C: the engine thread runs it, others may wait for the same inputs
                        self._handed_over = batch, None
                    if not self.is_waiting or self.is_stopping or len(self.scheduler) or not is_done:
                        self.condition.notify_all()

    def stop(self) -> None:
        with self.condition:
            self.is_stopping = True
            self.scheduler.clear()
            self.isolated.clear()
            self.condition.notify_all()

    def wait_for_callers(self, timeout_s: float) -> None:
        """Wait until no other thread runs a batch."""
        with self.condition:
            self.condition.wait_for(lambda: not self._is_elsewhere, timeout_s)

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
        in_flight: tuple[ScheduledBatch, Wait] | None = None
        while (batch := self._next_batch(block=in_flight is None)) is not None:
            self.step_started_at = time.monotonic()
            if self._handed_over is not None:
                in_flight = self._take_over(*self._handed_over)
                del batch
                if in_flight is not None and not self.executor.is_async:
                    self._finish_batch(*in_flight)
                    in_flight = None
                self.step_started_at = None if in_flight is None else time.monotonic()
                continue
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
                if self._is_elsewhere:
                    self.condition.wait()
                    continue
                if self._handed_over is not None:
                    return self._handed_over[0]
                if block and not len(self.scheduler) and not len(self.isolated):
                    self.is_waiting = True
                    self.condition.wait()
                    self.is_waiting = False
                    continue
                if (alone := self.isolated.next_input(others_wait=len(self.scheduler) > 0)) is not None:
                    return ScheduledBatch([alone], is_isolated=True)
                batch = self._take_batch()
                if batch is not None or not block:
                    return batch or ScheduledBatch([])
        return None

    def _take_batch(self) -> ScheduledBatch | None:
        """Return the next batch, perhaps an empty one; None if no sequences wait."""
        scheduled = self.scheduler.next_batch()
        self._fail_expired()
        self.on_batch_taken()  # also if there is no batch because all requests were aborted
        if not scheduled:
            return None
        slices = [part for item in scheduled for part in _to_group_slice(item).without_cancelled()]
        # sorted: kernels process consecutive sequences of equal length together
        return ScheduledBatch(sorted(slices, key=GroupSlice.seq_len))

    @property
    def is_busy(self) -> bool:
        """Whether a batch is on the device or waits for it; reading it needs no lock."""
        return self.num_on_device > 0 or self._is_elsewhere or self._handed_over is not None or len(self.scheduler) > 0

    def measure_late_s(self) -> float:
        """Return the seconds since the running batch was started if it is late, else 0.0; needs no lock."""
        if (started_at := self.step_started_at) is None:
            return 0.0
        elapsed_s = time.monotonic() - started_at
        return elapsed_s if self.rate.is_late(self.num_on_device, elapsed_s) else 0.0

    @property
    def _is_idle(self) -> bool:
        """Whether no thread runs a batch or is about to."""
        return self.is_waiting and not self._is_elsewhere and self._handed_over is None and not self.is_stopping

    def _can_skip_queue(self, group: SequenceGroup) -> bool:
        """Whether the next batch would be this group, which has one sequence, if it were queued."""
        receiver = group.receiver
        return (
            len(group.indices) == 1
            and self._is_idle
            and not len(self.scheduler)
            and not len(self.isolated)
            and len(group.inputs.token_ids) <= MAX_TOKENS_AT_ONCE
            and not 0.0 < group.deadline_at <= time.monotonic()
            and not (receiver.is_aborted or receiver.has_cancelled or receiver.isolated_indices)
        )

    def _take_alone(self, group: SequenceGroup) -> ScheduledBatch:
        """Return the batch of a sequence that skips the queue."""
        self.scheduler.on_queue_skipped(group)
        return ScheduledBatch([GroupSlice(group, 0, 1)])

    def _take_prepared(self) -> ScheduledBatch | None:
        """Return a small batch that the thread that submits it can start; the engine thread wakes up meanwhile."""
        if self.is_stopping or len(self.isolated) or self.scheduler.num_waiting_tokens > MAX_TOKENS_AT_ONCE:
            return None
        self.is_waiting = False
        batch = self._take_batch()
        return None if batch is None else self._prepare(batch)

    def _prepare(self, batch: ScheduledBatch) -> ScheduledBatch | None:
        """Return a batch that this thread can start; leave any other to the engine thread."""
        if len(batch) and self.executor.is_prepared(batch):
            self._is_elsewhere = True
            return batch
        self._handed_over = batch, None
        return None

    def _take_for_caller(self, groups: Sequence[SequenceGroup]) -> ScheduledBatch | None:
        """Return a small batch for the thread that submits groups; None if they are queued for the engine thread."""
        if len(groups) == 1 and self._can_skip_queue(groups[0]):
            return self._take_alone(groups[0])
        self.scheduler.add(self.isolated.take_isolated(groups))
        if not self._is_idle or len(self.isolated) or self.scheduler.num_waiting_tokens > MAX_TOKENS_AT_ONCE:
            return None
        return self._take_batch()

    def _start_here(self, batch: ScheduledBatch) -> None:
        """Start a batch and hand it over; without the lock: a device that hangs must not block the watchdog."""
        self.step_started_at = time.monotonic()
        started: Wait | Exception | None = None
        try:
            started = self._launch(batch)
        finally:
            with self.condition:
                self._handed_over, self._is_elsewhere = (batch, started), False
                self.condition.notify_all()

    def _take_over(self, batch: ScheduledBatch, started: Wait | Exception | None) -> tuple[ScheduledBatch, Wait] | None:
        """Continue in the engine thread with a batch that was handed over."""
        self._handed_over = None
        if started is None:
            return self._start_batch(batch) if len(batch) else None
        return self._check_started(batch, started)

    def _fail_expired(self) -> None:
        now = time.monotonic()
        for group in self.scheduler.take_expired():
            cast(SequenceGroup, group).receiver.expire(now)

    def _start_batch(self, batch: ScheduledBatch) -> tuple[ScheduledBatch, Wait] | None:
        return self._check_started(batch, self._launch(batch))

    def _launch(self, batch: ScheduledBatch) -> Wait | Exception:
        self._slot = batch.slot = 1 - self._slot  # that of the batch before is perhaps still in use
        self.recorder.record(batch)
        now = batch.times.started_at = time.monotonic()
        for receiver in {group_slice.group.receiver for group_slice in batch.slices}:
            receiver.mark_started(now)
        self.num_on_device += batch.num_tokens
        try:
            return self.executor.start(batch)
        except BaseException as error:
            self.num_on_device -= batch.num_tokens
            if not isinstance(error, Exception):  # such as that of Ctrl-C: the engine thread starts the batch again
                raise
            return error
        finally:  # while the device computes
            self.metrics.on_batch(len(batch), batch.num_tokens)

    def _check_started(self, batch: ScheduledBatch, started: Wait | Exception) -> tuple[ScheduledBatch, Wait] | None:
        """Return a batch that was started; if that failed, run it in parts."""
        if not isinstance(started, Exception):
            return batch, started
        check_device_is_usable(started)
        self._retry(batch, started)
        return None

    def _finish_batch(self, batch: ScheduledBatch, wait: Wait) -> None:
        failure = try_run(batch, lambda _: self._count_tokens(batch, self._wait(batch, wait)))
        if failure is None:
            self.recorder.clear(batch.slot)
            device_s = self.metrics.on_computed(batch.times)
            self.scheduler.throughput.record(batch.num_tokens, batch.num_seqs, device_s)
            num_waiting = self.scheduler.num_waiting_tokens
            self.rate.record(batch.num_tokens, batch.times.started_at, time.monotonic(), num_waiting)
        else:
            self._retry(batch, failure)

    def _wait(self, batch: ScheduledBatch, wait: Wait) -> BatchOutput:
        try:
            return wait()
        finally:
            self.num_on_device -= batch.num_tokens  # before callers get results: their next requests find it idle

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
        num_tokens = batch.num_tokens
        if output.failed_indices:
            num_tokens -= sum(int(batch.inputs.lengths[index]) for index in output.failed_indices)
        self.metrics.on_tokens_computed(num_tokens)
        return output


def _to_group_slice(item: Slice) -> GroupSlice:
    group, start, end = item
    return GroupSlice(cast(SequenceGroup, group), start, end)
