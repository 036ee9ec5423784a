"""State of one request in the engine: inputs still to tokenize, results received, and the future of the caller."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Many
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

import numpy as np

from cenote.engine.request_future import RequestFuture
from cenote.engine.sequence_group import GroupResult, RaggedRows
from cenote.engine.tokenized_batch import ResolvedOptions, TokenizedBatch
from cenote.errors import DeadlineExceeded, PoolingError
from cenote.inputs.chunks import LongTexts
from cenote.inputs.renderer import RenderSettings
from cenote.inputs.tokenized_inputs import Int64Array, RenderResult, TokenizedInputs
from cenote.protocol.input_types import Input, compute_input_size
from cenote.protocol.params import Task
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult, PoolResultBatch
from cenote.protocol.scheduling import SchedulingParams

PoolResults = list[PoolResult | PoolingError]
T = TypeVar("T")

ONLY_REQUEST = np.zeros(1, np.int64)  # of the only input of a request
# of typical text: estimates the number of tokens of a slice before it is tokenized
CHARS_PER_TOKEN = 4


class RequestState:
    """A request in flight: the sink of its batches, awaited by the caller."""

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
        options: Many[ResolvedOptions],
        prompt: str | None,
    ) -> None:
        """`options`: one for all inputs, or one per input."""
        self.request = request
        self.prompt = prompt
        self.num_inputs = len(request.inputs)
        self.options = options if len(options) == 1 else list(dict.fromkeys(options))
        if len(self.options) > 1:
            positions = {item: index for index, item in enumerate(self.options)}
            self._option_indices = np.array([positions[item] for item in options])
        if self.num_inputs > 1:
            self._cumulative_sizes = np.cumsum(_compute_sizes(request.inputs))
            self.num_chars = int(self._cumulative_sizes[-1])  # characters, or token ids of inputs without text
        else:
            self.num_chars = compute_input_size(request.inputs[0])
        self.admitted_at = time.monotonic()
        self.future = RequestFuture()  # done when all results are there, or the request has failed
        self._result_queue: SimpleQueue[Many[GroupResult] | None] = SimpleQueue()  # None at the end
        self._errors: dict[int, PoolingError] = {}
        self._long = LongTexts()
        self._lock = threading.Lock()  # results come from the tokenizer and the engine thread
        result_queue = self._result_queue  # capturing self would make a reference cycle
        self.future.add_done_callback(lambda _: result_queue.put(None))

    @property
    def scheduling(self) -> SchedulingParams:
        return self.request.scheduling

    @property
    def adapters(self) -> set[str | None]:
        return {options.adapter for options in self.options}

    @property
    def render_settings(self) -> RenderSettings:
        return self.request.tokenization, self.options[0].limits, self.prompt, self.request.role

    @property
    def render_key(self) -> tuple[object, ...]:
        """Requests with equal keys can be rendered together."""
        return type(self.request.inputs[0]), self.render_settings

    @property
    def is_aborted(self) -> bool:
        """Whether no caller waits for results: the request was cancelled or has failed."""
        return self.future.done()

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

    def add_rendered(self, rendered: RenderResult, first_index: int, max_tokens: int) -> list[TokenizedBatch]:
        """Take the errors of rendered inputs; return the others as a batch for each of their options.

        `first_index` is the index of the first one; texts of more than `max_tokens` are split into chunks.
        """
        for offset, error in rendered.errors.items():
            self.fail(first_index + offset, error)
        if (operands := self.request.operands) is not None:
            rendered.set_operands(operands[first_index:])
        inputs, indices = rendered.inputs, rendered.indices
        if len(indices) == 1 == self.num_inputs and len(inputs.token_ids) <= max_tokens:  # as in most requests
            return [self._make_batch(inputs, ONLY_REQUEST, self.options[0], None)]
        indices, batches = indices + first_index, []
        for number, options in enumerate(self.options):
            chosen, chosen_indices = inputs, indices
            if self._option_indices is not None:
                offsets = np.flatnonzero(self._option_indices[indices] == number)
                chosen, chosen_indices = inputs.select(offsets), indices[offsets]
            if not len(chosen):
                continue
            normalizes = options.specs[0].options.use_activation
            rows, row_indices = self._long.split(chosen, chosen_indices, max_tokens, normalizes=normalizes)
            batches.append(self._make_batch(rows, np.zeros(len(rows), np.int64), options, row_indices))
        return batches

    def _make_batch(
        self, inputs: TokenizedInputs, requests: Int64Array, options: ResolvedOptions, indices: Int64Array | None
    ) -> TokenizedBatch:
        deadline_at, admitted_at = self.request.deadline_at, self.admitted_at
        return TokenizedBatch(
            inputs, requests, options, self, deadline_at, input_numbers=indices, admitted_at=admitted_at
        )

    def on_started(self, now: float) -> None:
        if self.started_at is None:
            self.started_at = now
            self.request.timing.queue_s = max(0.0, now - self.admitted_at - self.request.timing.tokenize_s)

    def on_results(self, batch: TokenizedBatch, results: Many[GroupResult]) -> None:
        if (indices := batch.input_numbers) is not None:
            if self._long:
                results = [merged for result in results for merged in self._merge_chunks(result, indices)]
                if not results:
                    return
            else:
                results = [result._replace(indices=indices[result.indices]) for result in results]
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

    def _merge_chunks(self, result: GroupResult, indices: Int64Array) -> Iterator[GroupResult]:
        """Yield the results of whole inputs and those of the texts whose last chunk is among the rows of `result`.

        `indices`: of the input of each row of its batch.
        """
        rows, input_indices, vectors = result.indices.tolist(), indices[result.indices], result.rows[0].unbind()
        is_chunk = np.isin(input_indices, list(self._long))
        for position in np.flatnonzero(is_chunk).tolist():
            index, vector = int(input_indices[position]), vectors[position]
            with self._lock:  # those in the cache come from another thread
                mean = self._long.add(index, rows[position], vector, int(result.inputs.lengths[position]))
            if mean is not None:
                mean_rows = (RaggedRows(mean[None]),)
                yield GroupResult(self._long[index].text, np.array([index]), mean_rows, result.times)
        if not is_chunk.all():
            yield result._replace(indices=input_indices).select(np.flatnonzero(~is_chunk))

    def on_error(self, batch: TokenizedBatch, index: int, error: PoolingError) -> None:
        if index < 0:
            self.fail_all(error)
        else:
            self.fail(index if batch.input_numbers is None else int(batch.input_numbers[index]), error)

    def on_finished(self, batch: TokenizedBatch) -> None:
        """Do nothing: the request ends when all of its inputs are done."""

    def fail(self, index: int, error: PoolingError) -> None:
        if index in self._errors:  # that of another chunk
            return
        if error.index is None:
            error.index = index
        if self.request.keeps_error(error):
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
        return [PoolResult(result.rows[0].unbind()[0], inputs.token_ids, length, num_input_tokens, bool(is_exact))]
    ids, offsets = inputs.token_ids, inputs.cu_seqlens.tolist()
    data, *extra_data = result.unbind()
    pool_results = [
        PoolResult(array, ids[start:end], end - start, num_input_tokens, bool(is_exact))
        for array, start, end, (_, _, num_input_tokens, _, _, is_exact) in zip(
            data, offsets, offsets[1:], inputs.metadata.tolist(), strict=False
        )
    ]
    if extra_tasks:
        for pool_result, arrays in zip(pool_results, zip(*extra_data, strict=True), strict=True):
            pool_result.extra_data = dict(zip(extra_tasks, arrays, strict=True))
    return pool_results


def _compute_sizes(inputs: Many[Input]) -> Int64Array:
    has_len = set(map(type, inputs)) <= {str, list, tuple, np.ndarray}
    return np.fromiter(map(len if has_len else compute_input_size, inputs), dtype=np.int64, count=len(inputs))  # type: ignore[arg-type]
