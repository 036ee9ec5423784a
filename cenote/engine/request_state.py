"""One request on its way: the inputs still to render, the answers as they come, and the caller who waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Many
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from cenote.engine.sequence_group import GroupResult, RaggedRows
from cenote.errors import PoolingError
from cenote.inputs.limits import Limits
from cenote.inputs.tokenized_inputs import Int64Array, TokenizedInputs
from cenote.pooling.chunk_mean import WeightedMean
from cenote.pooling.pooler import PoolingSpec
from cenote.protocol.input_types import Input, compute_input_size
from cenote.protocol.params import Task
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult, PoolResultBatch

PoolResults = list[PoolResult | PoolingError]
T = TypeVar("T")

# of a text, as a rule: how much of it is a good slice can be told before it is tokenized
CHARS_PER_TOKEN = 4


class InputOptions(NamedTuple):
    """What is asked about an input."""

    specs: tuple[PoolingSpec, ...]
    adapter: str | None = None


class RequestState:
    def __init__(
        self,
        request: PoolRequest,
        input_options: Many[InputOptions],
        limits: Limits,
        prompt: str | None,
        query_embeddings: Many[Tensor] | None = None,
    ) -> None:
        """`wishes` is one for all inputs, or one each."""
        self.request = request
        self.limits = limits
        self.prompt = prompt
        self.query_embeddings = query_embeddings  # the rows of a query for each input to be compared with
        self.num_inputs = len(request.inputs)
        self.input_options = input_options if len(input_options) == 1 else list(dict.fromkeys(input_options))
        self._option_indices: Int64Array | None = None
        if len(self.input_options) > 1:
            numbers = {wish: number for number, wish in enumerate(self.input_options)}
            self._option_indices = np.array([numbers[wish] for wish in input_options])
        self._cumulative_sizes = np.cumsum(_compute_sizes(request.inputs))
        self.num_chars = int(self._cumulative_sizes[-1])  # or token ids
        self.num_rendered = 0  # inputs that have become sequences
        self.num_done = 0
        self.num_tokens = 0  # of the inputs that are done
        self.num_truncated = 0  # inputs of which only a part was read
        self.admitted_at = time.monotonic()
        self.started_at: float | None = None  # when its first batch began
        self.future: Future[None] = Future()  # done when all answers have come, or none will any more
        self._result_queue: SimpleQueue[Many[GroupResult] | None] = SimpleQueue()  # None at the end
        self._errors: dict[int, PoolingError] = {}
        self._lock = threading.Lock()  # answers come from two threads
        arrived = self._result_queue  # not the whole of this, which holds the future
        self.future.add_done_callback(lambda _: arrived.put(None))

    @property
    def is_aborted(self) -> bool:
        """Nobody waits any more: the caller has gone, or the request has failed already."""
        return self.future.done()

    def next_slice(self, max_tokens: int) -> Many[Input]:
        """The next inputs to render: about so many tokens, but at least one."""
        start = self.num_rendered
        is_text = not isinstance(self.request.inputs[start], list | tuple | np.ndarray)
        most = max_tokens * (CHARS_PER_TOKEN if is_text else 1) + (self._cumulative_sizes[start - 1] if start else 0)
        self.num_rendered = max(start + 1, int(np.searchsorted(self._cumulative_sizes, most, side="right")))
        return self.request.inputs[start : self.num_rendered]

    def group_by_options(self, indices: Int64Array) -> Iterator[tuple[InputOptions, Int64Array]]:
        """What is asked, and for each the places of the inputs of which it is."""
        if self._option_indices is None:
            yield self.input_options[0], np.arange(len(indices))
            return
        numbers = self._option_indices[indices]
        for number in np.unique(numbers):
            yield self.input_options[number], np.flatnonzero(numbers == number)

    def mark_started(self, now: float) -> None:
        if self.started_at is None:
            self.started_at = now
            self.request.timing.queue_s = max(0.0, now - self.admitted_at - self.request.timing.tokenize_s)

    def receive(self, results: Many[GroupResult]) -> None:
        self._result_queue.put(results)
        num_done = num_tokens = num_truncated = 0
        for each in results:
            num_done += len(each.inputs)
            num_tokens += len(each.inputs.token_ids)
            num_truncated += each.inputs.num_truncated
        self._add_progress(num_done, num_tokens, num_truncated)

    def fail(self, index: int, error: PoolingError) -> None:
        if error.index is None:
            error.index = index
        if self.request.return_exceptions:
            self._errors[index] = error
            self._add_progress(1)
        else:
            self.fail_all(error)

    def fail_all(self, error: PoolingError) -> None:
        with suppress(InvalidStateError):  # nobody waits any more
            self.future.set_exception(error)

    def _add_progress(self, num_done: int, num_tokens: int = 0, num_truncated: int = 0) -> None:
        with self._lock:
            self.num_done += num_done
            self.num_tokens += num_tokens
            self.num_truncated += num_truncated
            finished = self.num_done == self.num_inputs
        if finished:
            if self.started_at is not None:
                self.request.timing.inference_s = time.monotonic() - self.started_at
            with suppress(InvalidStateError):  # the caller has gone, maybe this very moment
                self.future.set_result(None)

    def wait(
        self, on_progress: Callable[[RequestState], None] | None = None, poll_interval_s: float = 0.1
    ) -> PoolResults:
        """Block until all answers are there, in the order of the inputs."""
        return self.collect(
            lambda answered: to_pool_results(answered, self.request.extra_tasks), on_progress, poll_interval_s
        )

    def get_results(self) -> PoolResults:
        """The same of a request that is done; vectors of one size are rows of one array."""
        several = list(self._iter_results())
        widths = {answered.vector_size for answered in several}
        if self._errors or len(widths) != 1 or None in widths:
            return self._place_by_index(several, lambda answered: to_pool_results(answered, self.request.extra_tasks))
        whole = GroupResult.concat_sorted(several)
        return PoolResultBatch(to_pool_results(whole, ()), whole.rows[0].values)

    def collect(
        self,
        make_items: Callable[[GroupResult], Many[T]],
        on_progress: Callable[[RequestState], None] | None = None,
        poll_interval_s: float = 0.1,
    ) -> list[T | PoolingError]:
        """The same, with something made of answers as soon as they have come: others are still being computed.

        Leaving early, as on Ctrl-C, abandons the rest.
        """
        try:
            made = self._place_by_index(self._iter_results(on_progress, poll_interval_s), make_items)
            self.future.result()
        finally:
            self.future.cancel()
        return made

    def _place_by_index(
        self, results: Iterable[GroupResult], make_items: Callable[[GroupResult], Many[T]]
    ) -> list[T | PoolingError]:
        made: list[T | PoolingError | None] = [None] * self.num_inputs
        for answered in results:
            for index, item in zip(answered.indices.tolist(), make_items(answered), strict=True):
                made[index] = item
        for index, error in self._errors.items():
            made[index] = error
        return made  # type: ignore[return-value]  # every place has been filled, or the request has failed

    def _iter_results(
        self, on_progress: Callable[[RequestState], None] | None = None, poll_interval_s: float = 0.1
    ) -> Iterator[GroupResult]:
        several: Many[GroupResult] | None = ()
        while several is not None:
            yield from several
            if on_progress is not None:
                on_progress(self)
            try:
                several = self._result_queue.get(timeout=None if on_progress is None else poll_interval_s)
            except Empty:
                several = ()
        if on_progress is not None:
            on_progress(self)


def to_pool_results(result: GroupResult, extra_tasks: Many[Task]) -> list[PoolResult]:
    """An object for every answer."""
    strip = result.inputs
    ids, ends = strip.token_ids, strip.cu_seqlens.tolist()
    data, *others = result.unbind()
    totals, exact = strip.metadata["num_input_tokens"].tolist(), (strip.metadata["is_exact"] != 0).tolist()
    answers = [
        PoolResult(row, ids[start:end], end - start, total, is_exact)
        for row, start, end, total, is_exact in zip(data, ends, ends[1:], totals, exact, strict=False)
    ]
    if extra_tasks:
        for answer, rest in zip(answers, zip(*others, strict=True), strict=True):
            answer.extra_data = dict(zip(extra_tasks, rest, strict=True))
    return answers


class ChunkedInput:
    """The chunks of one input, merged into one answer as they come."""

    def __init__(
        self, state: RequestState, index: int, full_input: TokenizedInputs, num_chunks: int, normalize: bool
    ) -> None:
        self.state = state
        self.index = index
        self.full_input = full_input
        self.num_remaining = num_chunks
        self.normalize = normalize
        self.chunk_mean = WeightedMean()

    @property
    def is_aborted(self) -> bool:
        return self.state.is_aborted or self.num_remaining < 0

    def mark_started(self, now: float) -> None:
        self.state.mark_started(now)

    def receive(self, results: Many[GroupResult]) -> None:
        if self.is_aborted:
            return
        for chunks in results:
            for vector, num_tokens in zip(chunks.rows[0].unbind(), chunks.inputs.lengths.tolist(), strict=True):
                self.chunk_mean.add(vector, num_tokens)
            self.num_remaining -= len(chunks.inputs)
        if self.num_remaining == 0:
            vector = self.chunk_mean.result(normalize=self.normalize)
            self.state.receive([GroupResult(self.full_input, np.array([self.index]), (RaggedRows(vector[None]),))])

    def fail(self, index: int, error: PoolingError) -> None:
        if not self.is_aborted:
            self.num_remaining = -1  # one chunk that fails takes the text with it, once
            self.state.fail(self.index, error)


def _compute_sizes(inputs: Many[Input]) -> Int64Array:
    plain = set(map(type, inputs)) <= {str, list, tuple, np.ndarray}
    return np.fromiter(map(len if plain else compute_input_size, inputs), dtype=np.int64, count=len(inputs))  # type: ignore[arg-type]
