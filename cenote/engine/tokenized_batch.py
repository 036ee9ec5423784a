"""TokenizedBatch: tokenized inputs with equal options, of one request or many, that pass the engine as arrays."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from collections.abc import Sequence as Many
from typing import NamedTuple, Protocol

import numpy as np

from cenote.engine.result_rows import GroupResult
from cenote.engine.sequence_group import CallRefs, ResultReceiver, SequenceGroup
from cenote.errors import DeadlineExceeded, PoolingError
from cenote.inputs.limits import Limits
from cenote.inputs.tokenized_inputs import ONLY_INDEX, BoolArray, Int64Array, TokenizedInputs
from cenote.pooling.pooler import PoolingSpec
from cenote.protocol.params import Role
from cenote.protocol.scheduling import SchedulingParams


class ResolvedOptions(NamedTuple):
    """Options of inputs, checked against the model once; requests of front-ends with equal options share them."""

    specs: tuple[PoolingSpec, ...]
    adapter: str | None
    limits: Limits
    scheduling: SchedulingParams = SchedulingParams()
    role: Role | None = None  # of models with different modules for queries and documents


class Sink(Protocol):
    """What is done with the results of a batch; called by the engine thread, for cached ones by the submitting one."""

    @property
    def is_aborted(self) -> bool:
        """Whether nobody waits for any result."""
        ...

    def on_started(self, now: float) -> None:
        """Called when the first of its inputs run."""
        ...

    def on_results(self, batch: TokenizedBatch, results: Many[GroupResult]) -> None: ...

    def on_error(self, batch: TokenizedBatch, index: int, error: PoolingError) -> None:
        """Called with the error of one input, or of all without a result for -1."""
        ...

    def on_finished(self, batch: TokenizedBatch) -> None:
        """Called once, before the last results are delivered."""
        ...


class TokenizedBatch:
    """State of inputs in the engine: counts what is done, and passes results on without splitting them."""

    def __init__(
        self,
        inputs: TokenizedInputs,
        request_indices: Int64Array,
        options: ResolvedOptions,
        sink: Sink,
        deadline_at: float = 0.0,
        *,
        call_ids: Int64Array | None = None,
        input_numbers: Int64Array | None = None,
        is_isolated: bool = False,
        admitted_at: float | None = None,
    ) -> None:
        """`request_indices`: for each input the number of its request, ascending.

        `call_ids` of the requests and `input_numbers` of the inputs identify them for front-ends. With `is_isolated`,
        each input runs in a batch of its own. `admitted_at`: when the requests were; None: now.
        """
        self.inputs = inputs
        self.request_indices = request_indices
        self.call_ids = call_ids
        self.input_numbers = input_numbers
        self.isolated_indices: Collection[int] = range(len(inputs)) if is_isolated else ()
        self.num_requests = int(request_indices[-1]) + 1 if len(request_indices) else 0
        self.options = options
        self.sink = sink
        self.deadline_at = deadline_at
        self.num_tokens = len(inputs.token_ids)
        self.admitted_at = time.monotonic() if admitted_at is None else admitted_at
        self.started_at: float | None = None
        self.finished_at = 0.0
        self.on_finished: Callable[[TokenizedBatch, str], None] | None = None
        self._is_aborted = self._is_finished = False
        self.num_done = self.num_done_truncated = 0  # of inputs with a result
        self.failed_requests: set[int] = set()  # numbers of requests with an error of their own
        self.cancelled_requests: set[int] = set()
        self._cancelled_inputs: BoolArray | None = None
        self._num_open = len(inputs)
        self._lock = threading.Lock()  # results come from the engine thread and, if cached, from the submitting one

    @property
    def scheduling(self) -> SchedulingParams:
        return self.options.scheduling

    @property
    def adapters(self) -> Collection[str | None]:
        return (self.options.adapter,)

    @property
    def is_aborted(self) -> bool:
        return self._is_aborted or self.sink.is_aborted

    def make_group(self, receiver: ResultReceiver) -> SequenceGroup:
        """Return all inputs as one group, sorted by length as the scheduler expects it."""
        specs, adapter, _, scheduling, _ = self.options
        inputs, order = self.inputs, ONLY_INDEX
        if len(inputs) > 1:
            order = inputs.lengths.argsort(kind="stable")
            inputs = inputs.select(order)
        return SequenceGroup(inputs, order, specs, receiver, scheduling, adapter, self.deadline_at)

    def get_call_refs(self, indices: Int64Array) -> CallRefs:
        if self.call_ids is None or self.input_numbers is None:
            return np.zeros_like(indices), indices
        return self.call_ids[self.request_indices[indices]], self.input_numbers[indices]

    def abort(self) -> None:
        """Drop what has not run: nobody waits for it."""
        self._is_aborted = True
        self._finish("cancelled")

    def cancel_requests(self, numbers: Int64Array) -> None:
        """Drop the inputs of some requests that have not run."""
        self.cancelled_requests.update(numbers.tolist())
        cancelled = np.isin(self.request_indices, list(self.cancelled_requests))
        if cancelled.all():
            self.abort()
        else:
            self._cancelled_inputs = cancelled

    @property
    def has_cancelled(self) -> bool:
        return self._cancelled_inputs is not None

    def find_cancelled(self, indices: Int64Array) -> BoolArray:
        assert self._cancelled_inputs is not None, "checked by has_cancelled"
        return self._cancelled_inputs[indices]

    def drop(self, num_inputs: int) -> None:
        """Count inputs that were cancelled before they ran."""
        self._count((), num_inputs)

    def drop_cancelled(self, indices: Int64Array) -> BoolArray:
        """Say which inputs nobody waits for, and count them."""
        cancelled = self.find_cancelled(indices)
        self.drop(int(cancelled.sum()))
        return cancelled

    def mark_started(self, now: float) -> None:
        if self.started_at is None:
            self.started_at = now
            self.sink.on_started(now)

    def receive(self, results: Many[GroupResult]) -> None:
        self.finished_at = time.monotonic()
        self._count(results)  # first: callers may read metrics as soon as they have their results
        if not self.is_aborted:
            self.sink.on_results(self, results)

    def fail(self, index: int, error: PoolingError) -> None:
        self.failed_requests.add(int(self.request_indices[index]))
        self._count((), 1)
        if not self.is_aborted:
            self.sink.on_error(self, index, error)

    def fail_all(self, error: PoolingError, outcome: str = "failed") -> None:
        """Fail every input that has no result: the engine stops, or the deadline has passed."""
        if not self.is_aborted:
            self._is_aborted = True
            self._finish(outcome)
            self.sink.on_error(self, -1, error)

    def expire(self, now: float) -> None:
        self.fail_all(DeadlineExceeded.after(now - self.admitted_at, now - self.deadline_at), "expired")

    def _count(self, results: Many[GroupResult], num_without_result: int = 0) -> None:
        num_done = num_truncated = 0
        for result in results:
            num_done += len(result.indices)
            num_truncated += result.inputs.num_truncated
        with self._lock:
            self.num_done += num_done
            self.num_done_truncated += num_truncated
            self._num_open -= num_done + num_without_result
            is_finished = self._num_open == 0
        if is_finished:
            self._finish("answered")

    def _finish(self, outcome: str) -> None:
        with self._lock:
            is_first, self._is_finished = not self._is_finished, True
        if is_first:
            if self.on_finished is not None:
                self.on_finished(self, outcome)
            self.sink.on_finished(self)
