"""TokenizedBatch: inputs of many small requests, tokenized by a front-end, that pass through the engine as arrays."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np

from cenote.engine.request_state import InputOptions
from cenote.engine.sequence_group import CallRefs, GroupResult, SequenceGroup
from cenote.errors import DeadlineExceeded, PoolingError
from cenote.inputs.limits import Limits
from cenote.inputs.tokenized_inputs import BoolArray, Int64Array, TokenizedInputs
from cenote.protocol.params import Role
from cenote.protocol.scheduling import SchedulingParams


@dataclass(frozen=True, slots=True)
class ResolvedOptions:
    """Options of requests, checked against the model once; requests with equal options share them."""

    input_options: InputOptions
    limits: Limits
    scheduling: SchedulingParams = SchedulingParams()
    role: Role | None = None  # of models with different modules for queries and documents


@dataclass(frozen=True, slots=True)
class BatchReceiver:
    """What is done with the results of a batch; called by the engine thread."""

    on_results: Callable[[TokenizedBatch, Many[GroupResult]], None]
    on_error: Callable[[TokenizedBatch, int, PoolingError], None]
    on_dropped: Callable[[TokenizedBatch, int], None]  # with the number of inputs that do not run: they were cancelled


class TokenizedBatch:
    """State of the requests in the engine: counts what is done, and passes results on without splitting them."""

    def __init__(
        self,
        inputs: TokenizedInputs,
        request_indices: Int64Array,
        options: ResolvedOptions,
        receiver: BatchReceiver,
        deadline_at: float = 0.0,
        *,
        call_ids: Int64Array | None = None,
        input_numbers: Int64Array | None = None,
        is_isolated: bool = False,
    ) -> None:
        """`request_indices`: for each input the number of its request, ascending.

        `call_ids` of the requests and `input_numbers` of the inputs identify them for front-ends. With `is_isolated`,
        each input runs in a batch of its own.
        """
        self.inputs = inputs
        self.request_indices = request_indices
        self.call_ids = call_ids
        self.input_numbers = input_numbers
        self.isolated_indices: Collection[int] = range(len(inputs)) if is_isolated else ()
        self.num_requests = int(request_indices[-1]) + 1 if len(request_indices) else 0
        self.options = options
        self.input_options = [options.input_options]
        self.receiver = receiver
        self.deadline_at = deadline_at
        self.num_tokens = len(inputs.token_ids)
        self.admitted_at = time.monotonic()
        self.started_at: float | None = None
        self.finished_at = 0.0
        self.is_aborted = False
        self.on_finished: Callable[[TokenizedBatch, str], None] = lambda batch, outcome: None
        self.num_done = self.num_done_truncated = 0  # of inputs with a result
        self.failed_requests: set[int] = set()  # numbers of requests with an error of their own
        self.cancelled_requests: set[int] = set()
        self._cancelled_inputs: BoolArray | None = None
        self._num_open = len(inputs)
        self._lock = threading.Lock()  # results come from the engine thread and, if cached, from the submitting one

    @property
    def scheduling(self) -> SchedulingParams:
        return self.options.scheduling

    def make_group(self, receiver: object) -> SequenceGroup:
        """Return all inputs as one group, sorted by length as the scheduler expects it."""
        order = self.inputs.lengths.argsort(kind="stable")
        specs, adapter = self.options.input_options
        return SequenceGroup(
            self.inputs.select(order),
            order,
            specs,
            receiver,  # type: ignore[arg-type]
            self.scheduling,
            adapter,
            deadline_at=self.deadline_at,
        )

    def get_call_refs(self, indices: Int64Array) -> CallRefs:
        if self.call_ids is None or self.input_numbers is None:
            return np.zeros_like(indices), indices
        return self.call_ids[self.request_indices[indices]], self.input_numbers[indices]

    def abort(self) -> None:
        """Drop what has not run: nobody waits for it."""
        self.is_aborted = True
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
        self.receiver.on_dropped(self, num_inputs)
        self._count((), num_inputs)

    def drop_cancelled(self, indices: Int64Array) -> BoolArray:
        """Say which inputs nobody waits for, and count them."""
        cancelled = self.find_cancelled(indices)
        self.drop(int(cancelled.sum()))
        return cancelled

    def mark_started(self, now: float) -> None:
        if self.started_at is None:
            self.started_at = now

    def receive(self, results: Many[GroupResult]) -> None:
        self.finished_at = time.monotonic()
        self._count(results)  # first: callers may read metrics as soon as they have their results
        if not self.is_aborted:
            self.receiver.on_results(self, results)

    def fail(self, index: int, error: PoolingError) -> None:
        self.failed_requests.add(int(self.request_indices[index]))
        self._count((), 1)
        if not self.is_aborted:
            self.receiver.on_error(self, index, error)

    def fail_all(self, error: PoolingError, outcome: str = "failed") -> None:
        """Fail every input that has no result: the engine stops, or the deadline has passed."""
        if not self.is_aborted:
            self.is_aborted = True
            self._finish(outcome)
            self.receiver.on_error(self, -1, error)

    def expire(self, now: float) -> None:
        self.fail_all(DeadlineExceeded.after(now - self.admitted_at, now - self.deadline_at), "expired")

    def _count(self, results: Many[GroupResult], num_without_result: int = 0) -> None:
        num_done = sum(len(result.indices) for result in results)
        with self._lock:
            self.num_done += num_done
            self.num_done_truncated += sum(result.inputs.num_truncated for result in results)
            self._num_open -= num_done + num_without_result
            is_finished = self._num_open == 0
        if is_finished:
            self._finish("answered")

    def _finish(self, outcome: str) -> None:
        on_finished, self.on_finished = self.on_finished, lambda batch, outcome: None
        on_finished(self, outcome)
