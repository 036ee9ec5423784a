"""LocalPending: a request in the process of its engine, which may have options for each of its inputs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

import numpy as np

from cenote.engine.pending import Pending, PoolResults, to_pool_results
from cenote.engine.request_future import RequestFuture
from cenote.engine.result_rows import GroupResult
from cenote.engine.tokenized_batch import ResolvedOptions, TokenizedBatch
from cenote.errors import PoolingError
from cenote.inputs.tokenized_inputs import Int64Array, RenderResult, TokenizedInputs
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import Float32Array

T = TypeVar("T")
OnProgress = Callable[["LocalPending"], None]

ONLY_REQUEST = np.zeros(1, np.int64)  # of the only row of a request


class LocalPending(Pending):
    """The sink of the batches that its rendered inputs are submitted as."""

    started_at: float | None = None  # start of its first batch
    _packed_at = 0.0  # of its first batch
    _computed_at = 0.0  # of its last batch
    _option_indices: Int64Array | None = None

    def __init__(self, request: PoolRequest, options: Many[ResolvedOptions], prompt: str | None) -> None:
        """`options`: one for all inputs, or one per input."""
        super().__init__(request)
        self._lock = threading.Lock()  # results come from the tokenizer and the engine thread
        self.future = RequestFuture()  # done when it is decided
        queue: SimpleQueue[Many[GroupResult] | None] = SimpleQueue()  # None at the end
        self._result_queue = queue
        self.future.add_done_callback(lambda _: queue.put(None))  # capturing self would make a reference cycle
        self.options = options if len(options) == 1 else list(dict.fromkeys(options))
        if len(self.options) > 1:
            positions = {item: index for index, item in enumerate(self.options)}
            self._option_indices = np.array([positions[item] for item in options])
        self.prepare((request.tokenization, self.options[0].limits, prompt, request.role))

    @property
    def is_aborted(self) -> bool:
        return self.future.done()

    @property
    def adapters(self) -> set[str | None]:
        return {options.adapter for options in self.options}

    def make_batches(self, rendered: RenderResult, max_tokens: int) -> list[TokenizedBatch]:
        """Take what was rendered next; return a batch for each of its options."""
        if self._option_indices is None:
            return self._make_batch(self.options[0], *self.take_rendered(rendered), max_tokens)
        inputs, indices = self.take_rendered(rendered)
        batches = []
        for number, options in enumerate(self.options):
            offsets = np.flatnonzero(self._option_indices[indices] == number)
            batches += self._make_batch(options, inputs.select(offsets), indices[offsets], max_tokens)
        return batches

    def _make_batch(
        self, options: ResolvedOptions, inputs: TokenizedInputs, indices: Int64Array, max_tokens: int
    ) -> list[TokenizedBatch]:
        """Return a batch of the inputs; none if there are none."""
        if not len(indices):
            return []
        first_row = self.num_rows
        rows = self.add_rows(inputs, indices, max_tokens, normalizes=options.specs[0].options.use_activation)
        is_only = self.num_rows == self.num_inputs == 1
        return [
            TokenizedBatch(
                rows,
                ONLY_REQUEST if is_only else np.zeros(len(rows), np.int64),
                options,
                self,
                self.request.deadline_at,
                input_numbers=None if is_only else np.arange(first_row, self.num_rows),
                admitted_at=self.admitted_at,
            )
        ]

    # the sink of its batches

    def on_started(self, now: float) -> None:
        if self.started_at is None:
            self.started_at = now
            self.request.timing.queue_s = max(0.0, now - self.admitted_at - self.request.timing.tokenize_s)

    def on_results(self, batch: TokenizedBatch, results: Many[GroupResult]) -> None:
        if (rows := batch.input_numbers) is not None:
            results = [result._replace(indices=rows[result.indices]) for result in results]
        if (times := results[-1].times) is not None:  # all results of one call are of the same batch
            self._packed_at = self._packed_at or times.packed_at
            self._computed_at = max(self._computed_at, times.computed_at)
        self.add_results(results)

    def _keep(self, results: Many[GroupResult]) -> None:
        self._result_queue.put(results)

    def _count(self, num_done: int, num_tokens: int, num_truncated: int) -> bool:
        with self._lock:
            return super()._count(num_done, num_tokens, num_truncated)

    def _add_chunk(self, index: int, row: int, vector: Float32Array, num_tokens: int) -> Float32Array | None:
        with self._lock:
            return super()._add_chunk(index, row, vector, num_tokens)

    def on_error(self, batch: TokenizedBatch, index: int, error: PoolingError) -> None:
        row = index if index < 0 or batch.input_numbers is None else int(batch.input_numbers[index])
        self.add_error(row, error)

    def on_finished(self, batch: TokenizedBatch) -> None:
        """Do nothing: the request ends when all of its inputs are done."""

    def _finish(self, error: BaseException | None = None) -> None:
        self.future.finish(error)

    def _record_times(self, now: float) -> None:
        timing = self.request.timing
        timing.answered_at = now
        if self.started_at is not None:
            # each at least the one before: a duplicate joins a batch that has started
            packed_at = max(self.started_at, self._packed_at)
            computed_at = max(packed_at, min(now, self._computed_at))
            timing.inference_s = now - self.started_at
            timing.pack_s = packed_at - self.started_at
            timing.device_s = computed_at - packed_at
            timing.deliver_s = now - computed_at

    # what the caller gets

    def wait(self, on_progress: OnProgress | None = None) -> PoolResults:
        """Block until all results are there; return them in the order of the inputs."""
        return self.collect(partial(to_pool_results, extra_tasks=self.request.extra_tasks), on_progress)

    def get_results(self) -> PoolResults:
        """Return the results of a finished request."""
        return self.make_results(list(self._iter_results()))

    def collect(
        self,
        make_items: Callable[[GroupResult], Many[T]],
        on_progress: OnProgress | None = None,
        poll_interval_s: float = 0.1,
    ) -> list[T | PoolingError]:
        """Block until all results are there, converting each group with `make_items` while others are computed.

        An exception, such as that of Ctrl-C, aborts the inputs that have not run.
        """
        try:
            items = self.place_by_index(self._iter_results(on_progress, poll_interval_s), make_items)
            self.future.result()
        except BaseException:
            self.future.cancel()
            raise
        return items

    def _iter_results(
        self, on_progress: OnProgress | None = None, poll_interval_s: float = 0.1
    ) -> Iterator[GroupResult]:
        groups: Many[GroupResult] | None = ()
        while groups is not None:
            yield from groups
            if on_progress is not None:
                on_progress(self)
            try:
                groups = self._result_queue.get(timeout=None if on_progress is None else poll_interval_s)
            except Empty:
                groups = ()
        if on_progress is not None:
            on_progress(self)
