"""State of one request in the engine: inputs still to tokenize, results received, and the future of the caller."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Many
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from cenote.engine.request_future import RequestFuture
from cenote.engine.sequence_group import CallRefs, GroupResult, RaggedRows
from cenote.errors import DeadlineExceeded, PoolingError
from cenote.inputs.chunk_mean import WeightedMean
from cenote.inputs.limits import Limits
from cenote.inputs.tokenized_inputs import BoolArray, Int64Array, TokenizedInputs
from cenote.pooling.pooler import PoolingSpec
from cenote.protocol.input_types import Input, compute_input_size
from cenote.protocol.params import Task
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult, PoolResultBatch
from cenote.protocol.scheduling import SchedulingParams

PoolResults = list[PoolResult | PoolingError]
T = TypeVar("T")

# of typical text: estimates the number of tokens of a slice before it is tokenized
CHARS_PER_TOKEN = 4


class InputOptions(NamedTuple):
    """The pooling specs and the adapter of an input."""

    specs: tuple[PoolingSpec, ...]
    adapter: str | None = None


class RequestState:
    """A request in flight; filled by the tokenizer and engine threads, awaited by the caller."""

    isolated_indices = ()  # no input is known to crash the process
    has_cancelled = False  # it is cancelled as a whole
    caller_waits = False  # the thread that submits it does nothing else until the results are there
    num_requests = 1
    num_rendered = 0  # inputs that have been tokenized
    num_done = 0
    num_tokens = 0  # of the finished inputs
    num_truncated = 0  # inputs that were truncated
    started_at: float | None = None  # start of its first batch
    _packed_at = 0.0  # of its first batch
    _computed_at = 0.0  # of its last batch
    _option_indices: Int64Array | None = None
    _cumulative_sizes: Int64Array | None = None  # of several inputs

    def __init__(
        self,
        request: PoolRequest,
        input_options: Many[InputOptions],
        limits: Limits,
        prompt: str | None,
    ) -> None:
        """`input_options`: one for all inputs, or one per input."""
        self.request = request
        self.limits = limits
        self.prompt = prompt
        self.num_inputs = len(request.inputs)
        self.input_options = input_options if len(input_options) == 1 else list(dict.fromkeys(input_options))
        if len(self.input_options) > 1:
            positions = {options: index for index, options in enumerate(self.input_options)}
            self._option_indices = np.array([positions[options] for options in input_options])
        if self.num_inputs > 1:
            self._cumulative_sizes = np.cumsum(_compute_sizes(request.inputs))
            self.num_chars = int(self._cumulative_sizes[-1])  # characters, or token ids of inputs without text
        else:
            self.num_chars = compute_input_size(request.inputs[0])
        self.admitted_at = time.monotonic()
        self.future = RequestFuture()  # done when all results are there, or the request has failed
        self._result_queue: SimpleQueue[Many[GroupResult] | None] = SimpleQueue()  # None at the end
        self._errors: dict[int, PoolingError] = {}
        self._lock = threading.Lock()  # results come from the tokenizer and the engine thread
        result_queue = self._result_queue  # capturing self would make a reference cycle
        self.future.add_done_callback(lambda _: result_queue.put(None))

    @property
    def scheduling(self) -> SchedulingParams:
        return self.request.scheduling

    @property
    def is_aborted(self) -> bool:
        """Whether no caller waits for results: the request was cancelled or has failed."""
        return self.future.done()

    def get_call_refs(self, indices: Int64Array) -> CallRefs:
        return np.zeros_like(indices), indices  # no front-end has sent it

    def next_slice(self, max_tokens: int) -> Many[Input]:
        """Return the next inputs to tokenize: at least one, and about `max_tokens` in total."""
        start = self.num_rendered
        if self._cumulative_sizes is None:
            self.num_rendered = 1
            return self.request.inputs
        is_text = not isinstance(self.request.inputs[start], list | tuple | np.ndarray)
        max_size = max_tokens * (CHARS_PER_TOKEN if is_text else 1)
        end_size = max_size + (self._cumulative_sizes[start - 1] if start else 0)
        self.num_rendered = max(start + 1, int(np.searchsorted(self._cumulative_sizes, end_size, side="right")))
        return self.request.inputs[start : self.num_rendered]

    def group_by_options(self, indices: Int64Array) -> Iterator[tuple[InputOptions, Int64Array]]:
        """Group inputs by their options; yield the options and the positions within `indices`."""
        if self._option_indices is None:
            yield self.input_options[0], np.arange(len(indices))
            return
        option_indices = self._option_indices[indices]
        for option_index in np.unique(option_indices):
            yield self.input_options[option_index], np.flatnonzero(option_indices == option_index)

    def find_cancelled(self, indices: Int64Array) -> BoolArray:
        return np.zeros(len(indices), dtype=bool)

    def drop(self, num_inputs: int) -> None:
        """Do nothing: single inputs are not cancelled."""

    def drop_cancelled(self, indices: Int64Array) -> BoolArray:
        return self.find_cancelled(indices)

    def mark_started(self, now: float) -> None:
        if self.started_at is None:
            self.started_at = now
            self.request.timing.queue_s = max(0.0, now - self.admitted_at - self.request.timing.tokenize_s)

    def receive(self, results: Many[GroupResult]) -> None:
        self._result_queue.put(results)
        if (times := results[-1].times) is not None:  # all results of one call are of the same batch
            self._packed_at = self._packed_at or times.packed_at
            self._computed_at = max(self._computed_at, times.computed_at)
        num_done = num_tokens = num_truncated = 0
        for result in results:
            num_done += len(result.inputs)
            num_tokens += len(result.inputs.token_ids)
            num_truncated += result.inputs.num_truncated
        self._add_progress(num_done, num_tokens, num_truncated)

    def fail(self, index: int, error: PoolingError) -> None:
        if error.index is None:
            error.index = index
        kept = self.request.return_exceptions
        if kept is True or (kept == "computed" and error.status == 500):
            self._errors[index] = error
            self._add_progress(1)
        else:
            self.fail_all(error)

    def expire(self, now: float) -> None:
        """Fail the request: its deadline has passed."""
        self.fail_all(DeadlineExceeded.after(now - self.admitted_at, now - self.request.deadline_at))

    def fail_all(self, error: PoolingError) -> None:
        self.future.finish(error)

    def _add_progress(self, num_done: int, num_tokens: int = 0, num_truncated: int = 0) -> None:
        with self._lock:
            self.num_done += num_done
            self.num_tokens += num_tokens
            self.num_truncated += num_truncated
            is_finished = self.num_done == self.num_inputs
        if is_finished:
            self._record_times(time.monotonic())
            self.future.finish()

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

    def wait(self, on_progress: Callable[[RequestState], None] | None = None) -> PoolResults:
        """Block until all results are there; return them in the order of the inputs."""
        return self.collect(partial(to_pool_results, extra_tasks=self.request.extra_tasks), on_progress)

    def get_results(self) -> PoolResults:
        """Return the results of a finished request; vectors of equal size as rows of one array."""
        groups = list(self._iter_results())
        vector_sizes = {group.vector_size for group in groups}
        if self._errors or len(vector_sizes) != 1 or None in vector_sizes:
            return self._place_by_index(groups, partial(to_pool_results, extra_tasks=self.request.extra_tasks))
        merged = GroupResult.concat_sorted(groups)
        return PoolResultBatch(to_pool_results(merged, ()), merged.rows[0].values)

    def collect(
        self,
        make_items: Callable[[GroupResult], Many[T]],
        on_progress: Callable[[RequestState], None] | None = None,
        poll_interval_s: float = 0.1,
    ) -> list[T | PoolingError]:
        """Block until all results are there, converting each group with `make_items` while others are computed.

        An exception, such as that of Ctrl-C, aborts the inputs that have not run.
        """
        try:
            items = self._place_by_index(self._iter_results(on_progress, poll_interval_s), make_items)
            self.future.result()
        except BaseException:
            self.future.cancel()
            raise
        return items

    def _place_by_index(
        self, results: Iterable[GroupResult], make_items: Callable[[GroupResult], Many[T]]
    ) -> list[T | PoolingError]:
        items: list[T | PoolingError | None] = [None] * self.num_inputs
        for group in results:
            if self.num_inputs == 1:  # as in most requests
                items[0] = make_items(group)[0]
                continue
            for index, item in zip(group.indices.tolist(), make_items(group), strict=True):
                items[index] = item
        for index, error in self._errors.items():
            items[index] = error
        return items  # type: ignore[return-value]  # no None is left unless the request has failed

    def _iter_results(
        self, on_progress: Callable[[RequestState], None] | None = None, poll_interval_s: float = 0.1
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


def to_pool_results(result: GroupResult, extra_tasks: Many[Task]) -> list[PoolResult]:
    """Make a PoolResult for every input of a group."""
    inputs = result.inputs
    if len(inputs) == 1 and len(result.rows) == 1:  # as most queries
        length, _, num_input_tokens, _, _, is_exact = inputs.only_record
        (tensor,) = result.rows[0].unbind()
        return [PoolResult(tensor, inputs.token_ids, length, num_input_tokens, bool(is_exact))]
    ids, offsets = inputs.token_ids, inputs.cu_seqlens.tolist()
    data, *extra_data = result.unbind()
    pool_results = [
        PoolResult(tensor, ids[start:end], end - start, num_input_tokens, bool(is_exact))
        for tensor, start, end, (_, _, num_input_tokens, _, _, is_exact) in zip(
            data, offsets, offsets[1:], inputs.metadata.tolist(), strict=False
        )
    ]
    if extra_tasks:
        for pool_result, tensors in zip(pool_results, zip(*extra_data, strict=True), strict=True):
            pool_result.extra_data = dict(zip(extra_tasks, tensors, strict=True))
    return pool_results


class ChunkedInput:
    """Receive the chunks of one long input and merge them into one result."""

    isolated_indices = ()
    has_cancelled = False

    def __init__(
        self, state: RequestState, index: int, full_input: TokenizedInputs, num_chunks: int, normalize: bool
    ) -> None:
        self.state = state
        self.index = index
        self.full_input = full_input
        self.has_failed = False
        self.normalize = normalize
        self.mean = WeightedMean(num_chunks)

    @property
    def is_aborted(self) -> bool:
        return self.state.is_aborted or self.has_failed

    def drop_cancelled(self, indices: Int64Array) -> BoolArray:
        return np.zeros(len(indices), dtype=bool)

    def get_call_refs(self, indices: Int64Array) -> CallRefs:
        return self.state.get_call_refs(indices)

    def mark_started(self, now: float) -> None:
        self.state.mark_started(now)

    def receive(self, results: Many[GroupResult]) -> None:
        if self.is_aborted:
            return
        for chunks in results:
            indices, lengths = chunks.indices.tolist(), chunks.inputs.lengths.tolist()
            for chunk, vector, num_tokens in zip(indices, chunks.rows[0].unbind(), lengths, strict=True):
                self.mean.add(chunk, vector.float().numpy(), num_tokens)
        if self.mean.is_complete:
            vector = torch.from_numpy(self.mean.result(normalize=self.normalize))
            rows = (RaggedRows(vector[None]),)
            self.state.receive([GroupResult(self.full_input, np.array([self.index]), rows, results[-1].times)])

    def fail(self, index: int, error: PoolingError) -> None:
        if not self.is_aborted:
            self.has_failed = True  # a failed chunk fails its input, once
            self.state.fail(self.index, error)

    def expire(self, now: float) -> None:
        self.state.expire(now)


def _compute_sizes(inputs: Many[Input]) -> Int64Array:
    has_len = set(map(type, inputs)) <= {str, list, tuple, np.ndarray}
    return np.fromiter(map(len if has_len else compute_input_size, inputs), dtype=np.int64, count=len(inputs))  # type: ignore[arg-type]
