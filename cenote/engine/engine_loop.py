"""The engine thread: schedule, run, deliver; one batch ahead of a device that works by itself."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from cenote.engine.batch_bisect import answer_all_but_the_guilty, attempt
from cenote.engine.engine_metrics import Records
from cenote.engine.execution.executor import Executor
from cenote.engine.result_delivery import Outcome
from cenote.engine.scheduler import Scheduler
from cenote.engine.sequence_group import Batch, Lot, Part

logger = logging.getLogger("cenote")


class Loop:
    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        records: Records,
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.records = records
        self.on_end = on_end  # told once, with what killed the thread if anything did
        self.changed = threading.Condition()  # guards the scheduler
        self.step_began: float | None = None  # when the batch now running was started
        self.stopping = False
        self.thread = threading.Thread(target=self._run, name="cenote-engine", daemon=True)

    def submit(self, lots: Iterable[Lot]) -> None:
        with self.changed:
            self.scheduler.add(lots)
            self.changed.notify_all()

    def wait_for_room(self, max_waiting_tokens: int) -> bool:
        """Block while too much waits; False when the loop ends instead."""
        with self.changed:
            self.changed.wait_for(lambda: self.stopping or self.scheduler.waiting_tokens < max_waiting_tokens)
            return not self.stopping

    def stop(self) -> None:
        with self.changed:
            self.stopping = True
            self.scheduler.clear()
            self.changed.notify_all()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._work()
        except BaseException as caught:  # nobody who waits may be left without an answer
            error = caught
            logger.exception("the engine thread died")
        finally:
            self.on_end(error)

    def _work(self) -> None:
        ahead: tuple[Batch, Callable[[], Outcome]] | None = None
        while (batch := self._next_batch(block=ahead is None)) is not None:
            self.step_began = time.monotonic()
            started = self._start(batch) if len(batch) else None
            if ahead is not None:
                self._deliver(*ahead)
            if started is not None and not self.executor.overlapping:
                self._deliver(*started)
                started = None
            ahead = started
            del batch, started  # while nothing runs, nothing of what ran is kept
            self.step_began = None if ahead is None else time.monotonic()

    def _next_batch(self, *, block: bool) -> Batch | None:
        """The next batch; empty when nothing waits and there is other work; None at the end."""
        with self.changed:
            while not self.stopping:
                parts = self.scheduler.next_batch()
                self.changed.notify_all()  # there is room for more, also when all that waited was abandoned
                if parts or not block:
                    found = [Part(*part) for part in parts]  # type: ignore[arg-type]  # lots are what waits
                    return Batch(sorted(found, key=Part.length))  # kernels take neighbours of like lengths together
                if not len(self.scheduler):
                    self.changed.wait()
        return None

    def _start(self, batch: Batch) -> tuple[Batch, Callable[[], Outcome]] | None:
        now = time.monotonic()
        for receiver in {part.lot.receiver for part in batch.parts}:
            receiver.start(now)
        self.records.batch(len(batch), batch.num_tokens)
        try:
            return batch, self.executor.start(batch)
        except Exception as error:
            failure = error
        # not while the first error is handled, or every later one drags its traceback along
        answer_all_but_the_guilty(batch, self._run_now, failure)
        del failure  # it holds this frame, which holds it
        return None

    def _deliver(self, batch: Batch, wait: Callable[[], Outcome]) -> None:
        failure = attempt(batch, lambda _: wait())
        if failure is not None:
            answer_all_but_the_guilty(batch, self._run_now, failure)

    def _run_now(self, batch: Batch) -> Outcome:
        self.step_began = time.monotonic()
        return self.executor.start(batch)()
