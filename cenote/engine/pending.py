"""Pending: a request in flight, in the process of `LLM` or in a front-end, until all results or errors are there."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from collections.abc import Sequence as Many
from functools import partial
from typing import Any, TypeVar

import numpy as np

from cenote.engine.result_rows import GroupResult, RaggedRows
from cenote.errors import DeadlineExceeded, PoolingError
from cenote.inputs.chunks import LongTexts
from cenote.inputs.renderer import RenderSettings
from cenote.inputs.tokenized_inputs import Int64Array, RenderResult, TokenizedInputs
from cenote.protocol.input_types import Input, compute_input_size
from cenote.protocol.params import Task
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import Float32Array, PoolResult, PoolResultBatch
from cenote.protocol.scheduling import Lane

PoolResults = list[PoolResult | PoolingError]
T = TypeVar("T")

CHARS_PER_TOKEN = 4  # of typical text: inputs that are token ids count as so many characters each


class Pending(ABC):
    """Inputs that are rendered slice by slice, and their results, which come in any order and from any thread.

    The rows of a request are what is computed for it: its inputs without those that could not be rendered, and with the
    chunks of a long text in its place.
    """

    caller_waits = False  # the thread that submits it does nothing else until the results are there
    num_requests = 1
    settings: RenderSettings
    render_key: Hashable  # requests with equal keys can be rendered together
    prompt: str | None = None  # before each of its texts
    is_decided = False  # all results are there, or the request has failed
    error: BaseException | None = None  # with which it has failed
    attempt_number = 0  # of the last time that it was begun to be rendered and computed
    num_done = 0  # inputs with a result or an error of their own
    num_tokens = 0  # of the inputs with a result
    num_truncated = 0  # of these, inputs that were truncated
    _cumulative_chars: Int64Array | None = None

    def __init__(self, request: PoolRequest, num_chars: int | None = None) -> None:
        """`num_chars`: the size of its inputs, if it is known."""
        self.request = request
        self.num_inputs = len(request.inputs)
        self.num_chars = _sum_sizes(request.inputs) if num_chars is None else num_chars
        self.num_render_chars = self.num_chars  # of what there is to render
        self.admitted_at = time.monotonic()
        self._clear()

    def _clear(self) -> None:
        """Begin without rendered inputs and results."""
        self.num_taken = 0  # inputs that were taken to be rendered
        self.num_rendered = 0  # inputs that are rendered, or have an error instead
        self.num_rows = self.num_done = 0
        self._indices: Int64Array | None = None  # of the input of each row; None: those of the rows themselves
        self._long = LongTexts()
        self._errors: dict[int, PoolingError] = {}

    @property
    def lane(self) -> Lane:
        return self.request.scheduling.lane

    def prepare(self, settings: RenderSettings, *more_key: Hashable) -> None:
        """Set how its inputs are rendered; those of requests with equal settings, and `more_key`, are together."""
        self.settings, self.prompt = settings, settings[2]
        self.render_key = type(self.request.inputs[0]), settings, *more_key
        if self.prompt:
            self.num_render_chars = self.num_chars + len(self.prompt) * self.num_inputs

    @property
    def is_aborted(self) -> bool:
        """Whether no caller waits for results: the request was cancelled or has failed."""
        return self.is_decided

    @property
    def is_rendered(self) -> bool:
        return self.num_rendered == self.num_inputs

    # rendering

    def take_slice(self, max_chars: int) -> Many[Input]:
        """Return the next inputs to render: at least one, and about `max_chars` in total."""
        start, inputs = self.num_taken, self.request.inputs
        is_ids = isinstance(inputs[start], list | tuple | np.ndarray)
        max_size = max_chars // CHARS_PER_TOKEN if is_ids else max_chars
        if self.num_inputs == 1 or (start == 0 and self.num_render_chars <= max_size):
            self.num_taken = self.num_inputs
            return inputs
        if self._cumulative_chars is None:
            sizes = np.fromiter(_compute_sizes(inputs), np.int64, self.num_inputs)
            self._cumulative_chars = np.cumsum(sizes + len(self.prompt or ""))
        end_size = max_size + (int(self._cumulative_chars[start - 1]) if start else 0)
        self.num_taken = max(start + 1, int(np.searchsorted(self._cumulative_chars, end_size, side="right")))
        return inputs[start : self.num_taken]

    def take_rendered(self, rendered: RenderResult) -> tuple[TokenizedInputs, Int64Array]:
        """Take the errors of what was rendered next; return the inputs without, and their indices in the request."""
        first_index = self.num_rendered
        self.num_rendered += len(rendered)
        for offset, error in rendered.errors.items():
            self.fail(first_index + offset, error)
        if (operands := self.request.operands) is not None:
            rendered.set_operands(operands[first_index:])
        return rendered.inputs, rendered.indices + first_index if first_index else rendered.indices

    def add_rows(
        self, inputs: TokenizedInputs, indices: Int64Array, max_tokens: int, *, normalizes: bool
    ) -> TokenizedInputs:
        """Make the next rows of tokenized inputs and return them; none is longer than `max_tokens` (0: no limit)."""
        if len(inputs) == 1 == self.num_inputs and (not max_tokens or len(inputs.token_ids) <= max_tokens):
            self.num_rows = 1  # as in most requests
            return inputs
        first_row = self.num_rows
        if max_tokens:
            inputs, indices = self._long.split(inputs, indices, max_tokens, normalizes=normalizes, first_row=first_row)
        self.num_rows += len(indices)
        if self._indices is not None:
            self._indices = np.concatenate([self._indices, indices])
        elif not np.array_equal(indices, np.arange(first_row, self.num_rows)):
            self._indices = np.concatenate([np.arange(first_row), indices])
        return inputs

    def get_index(self, row: int) -> int:
        """Return the index of the input of a row."""
        return row if self._indices is None else int(self._indices[row])

    def count_continued(self, start: int, count: int) -> int:
        """Return how many of the rows from `start` on are further chunks of a text."""
        if not self._long or self._indices is None:
            return 0
        return count - len(np.unique(self._indices[start : start + count]))

    # results and errors

    def add_results(self, results: Many[GroupResult]) -> None:
        """Take results, whose indices are the numbers of their rows."""
        if self._long:
            results = [merged for result in results for merged in self._merge_chunks(result)]
            if not results:
                return
        elif self._indices is not None:
            results = [result._replace(indices=self._indices[result.indices]) for result in results]
        self._keep(results)
        num_done = num_tokens = num_truncated = 0
        for result in results:
            num_done += len(result.inputs)
            num_tokens += len(result.inputs.token_ids)
            num_truncated += result.inputs.num_truncated
        self._add_progress(num_done, num_tokens, num_truncated)

    def _merge_chunks(self, result: GroupResult) -> Iterator[GroupResult]:
        """Yield the results of whole inputs, and those of the texts whose last chunk is among the rows of `result`."""
        assert self._indices is not None, "a long text has several rows"
        rows, indices, vectors = result.indices.tolist(), self._indices[result.indices], result.rows[0].unbind()
        is_chunk = np.isin(indices, list(self._long))
        for position in np.flatnonzero(is_chunk).tolist():
            index = int(indices[position])
            if index in self._errors:  # that of another chunk
                continue
            mean = self._add_chunk(index, rows[position], vectors[position], int(result.inputs.lengths[position]))
            if mean is not None:
                yield GroupResult(self._long[index].text, np.array([index]), (RaggedRows(mean[None]),), result.times)
        whole = result._replace(indices=indices)
        for position in np.flatnonzero(~is_chunk).tolist():
            yield whole.slice(position, position + 1)

    def _add_chunk(self, index: int, row: int, vector: Float32Array, num_tokens: int) -> Float32Array | None:
        """Add the vector of a chunk; return that of its text if it is the last one."""
        return self._long.add(index, row, vector, num_tokens)

    def add_error(self, row: int, error: PoolingError) -> None:
        """Take the error of a row, or of all for -1."""
        if row < 0:
            self.fail_all(error)
        else:
            self.fail(self.get_index(row), error)

    def fail(self, index: int, error: PoolingError) -> None:
        """Take the error of an input."""
        if index in self._errors:  # that of another chunk
            return
        if error.index is None:
            error.index = index
        if self.request.keeps_error(error):
            self._errors[index] = error
            self._add_progress(1)
        else:
            self.fail_all(error)

    def check_deadline(self) -> None:
        """Raise DeadlineExceeded if the deadline has passed."""
        if self.is_late(now := time.monotonic()):
            raise self._make_late_error(now)

    def is_late(self, now: float) -> bool:
        """Whether the deadline has passed."""
        return 0.0 < self.request.deadline_at <= now

    def expire(self, now: float) -> None:
        """Fail the request: its deadline has passed."""
        self.fail_all(self._make_late_error(now))

    def _make_late_error(self, now: float) -> DeadlineExceeded:
        return DeadlineExceeded.after(now - self.admitted_at, now - self.request.deadline_at)

    def fail_all(self, error: Exception) -> None:
        self._finish(error)

    def _finish(self, error: BaseException | None = None) -> None:
        """End with all results, or with an error; nothing changes if it has ended before."""
        if not self.is_decided:
            self.is_decided, self.error = True, error

    @abstractmethod
    def _keep(self, results: Many[GroupResult]) -> None:
        """Take results of inputs."""

    def _add_progress(self, num_done: int, num_tokens: int = 0, num_truncated: int = 0) -> None:
        if self._count(num_done, num_tokens, num_truncated):
            self._record_times(time.monotonic())
            self._finish()

    def _count(self, num_done: int, num_tokens: int, num_truncated: int) -> bool:
        """Count inputs with a result or an error; return whether they are the last ones."""
        self.num_done += num_done
        self.num_tokens += num_tokens
        self.num_truncated += num_truncated
        return self.num_done == self.num_inputs

    @abstractmethod
    def _record_times(self, now: float) -> None:
        """Record in the request how long each step took: all results are there."""

    # what the caller gets

    def make_results(self, groups: Many[GroupResult]) -> PoolResults:
        """Return the results of a finished request; vectors of equal size as rows of one array."""
        if self.num_inputs == 1 and groups:  # as in most requests
            (group,) = groups
            results: PoolResults = [*to_pool_results(group, self.request.extra_tasks)]
            return results if group.vector_size is None else PoolResultBatch(results, group.rows[0].values)
        results = self.place_by_index(groups, partial(to_pool_results, extra_tasks=self.request.extra_tasks))
        if self._errors or (size := groups[0].vector_size) is None:
            return results
        if len(groups) == 1 and np.array_equal(groups[0].indices, np.arange(self.num_inputs)):
            return PoolResultBatch(results, groups[0].rows[0].values)
        if any(group.vector_size != size for group in groups):
            return results
        rows: Float32Array = np.empty((self.num_inputs, size), np.float32)
        for group in groups:
            rows[group.indices] = group.rows[0].values
        return PoolResultBatch(results, rows)

    def place_by_index(
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


def to_pool_results(result: GroupResult, extra_tasks: Many[Task]) -> list[PoolResult]:
    """Make a PoolResult for every input of a group."""
    inputs = result.inputs
    data, *extra_data = result.unbind()
    if len(inputs) == 1:  # as most queries
        length, _, num_input_tokens, _, _, is_exact = inputs.only_record
        pool_results = [PoolResult(data[0], inputs.token_ids, length, num_input_tokens, bool(is_exact))]
    else:
        ids, offsets = inputs.token_ids, inputs.cu_seqlens.tolist()
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


def _sum_sizes(inputs: Many[Any]) -> int:
    return len(inputs[0]) if len(inputs) == 1 and type(inputs[0]) is str else sum(_compute_sizes(inputs))


def _compute_sizes(inputs: Many[Any]) -> Iterable[int]:
    has_len = set(map(type, inputs)) <= {str, list, tuple, np.ndarray}
    return map(len if has_len else compute_input_size, inputs)
