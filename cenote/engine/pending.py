"""One request on its way: the inputs still to render, the answers so far, and the future its caller waits on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Many
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from torch import Tensor

from cenote.engine.sequence import Answer, Sequence
from cenote.errors import PoolingError
from cenote.inputs.chunks import WeightedMean
from cenote.inputs.render import Limits, Rendered
from cenote.pooling.pooler import Ask
from cenote.request import Input, Pooled, PoolRequest, input_size

Answers = list[Pooled | PoolingError]


class Pending:
    def __init__(
        self,
        request: PoolRequest,
        asks: Many[tuple[Ask, ...]],
        limits: Limits,
        prompt: str | None,
        adapters: Many[str | None] | None = None,
        against: Many[Tensor] | None = None,
    ) -> None:
        self.request = request
        self.asks = asks  # one for each input
        self.limits = limits
        self.prompt = prompt
        self.adapters = adapters or [None] * len(request.inputs)  # by name, one for each input
        self.against = against  # the rows of a query for each input to be compared with
        self.future: Future[Answers] = Future()
        self.num_chars = sum(map(input_size, request.inputs))  # or token ids
        self.num_rendered = 0  # inputs that have become sequences
        self.num_done = 0
        self.num_tokens = 0  # of the inputs that are done
        self.num_truncated = 0  # inputs of which only a part was read
        self.admitted = time.monotonic()
        self.started: float | None = None  # when its first batch began
        self._answers: list[Pooled | PoolingError | None] = [None] * len(request.inputs)
        self._lock = threading.Lock()  # answers come from two threads

    @property
    def size(self) -> int:
        return len(self._answers)

    @property
    def abandoned(self) -> bool:
        """Nobody waits any more: the caller has gone, or the request has failed already."""
        return self.future.done()

    def take(self, max_inputs: int, max_size: int) -> Many[Input]:
        """The next inputs to render: so many, or fewer when they are long."""
        start, size = self.num_rendered, 0
        while self.num_rendered < min(start + max_inputs, self.size) and size < max_size:
            size += input_size(self.request.inputs[self.num_rendered])
            self.num_rendered += 1
        return self.request.inputs[start : self.num_rendered]

    def start(self, now: float) -> None:
        if self.started is None:
            self.started = now
            self.request.timing.queue = max(0.0, now - self.admitted - self.request.timing.tokenize)

    def receive(self, sequence: Sequence, answer: Answer) -> None:
        if isinstance(answer, PoolingError):
            self.fail(sequence.index, answer)
        else:
            self.finish(sequence.index, answer, sequence.rendered)

    def finish(self, index: int, answer: tuple[Tensor, ...], read: Rendered) -> None:
        data, *rest = answer
        others = dict(zip(self.request.also, rest, strict=True))
        exact = read.input_tokens_exact
        self._settle(index, Pooled(data, read.token_ids, len(read.token_ids), read.num_input_tokens, exact, others))

    def fail(self, index: int, error: PoolingError) -> None:
        if error.index is None:
            error.index = index
        if self.request.keep_going:
            self._settle(index, error)
        else:
            self.fail_all(error)

    def fail_all(self, error: PoolingError) -> None:
        with suppress(InvalidStateError):  # nobody waits any more
            self.future.set_exception(error)

    def _settle(self, index: int, answer: Pooled | PoolingError) -> None:
        with self._lock:
            self._answers[index] = answer
            self.num_done += 1
            if isinstance(answer, Pooled):
                self.num_tokens += answer.num_tokens
                self.num_truncated += answer.truncated
            finished = self.num_done == self.size
        if finished:
            if self.started is not None:
                self.request.timing.inference = time.monotonic() - self.started
            with suppress(InvalidStateError):  # the caller has gone, maybe this very moment
                self.future.set_result(self._answers)  # type: ignore[arg-type]

    def wait(self, on_progress: Callable[[Pending], None] | None = None, every_s: float = 0.1) -> Answers:
        """Block until all answers are there; leaving early, as on Ctrl-C, abandons the rest."""
        try:
            if on_progress is None:
                return self.future.result()
            on_progress(self)
            while True:
                try:
                    return self.future.result(timeout=every_s)
                except TimeoutError:
                    if self.future.done():
                        raise
                finally:
                    on_progress(self)
        finally:
            self.future.cancel()


class LongText:
    """The chunks of one input, merged into one answer as they come."""

    def __init__(self, pending: Pending, index: int, whole: Rendered, num_chunks: int, normalize: bool) -> None:
        self.pending = pending
        self.index = index
        self.whole = whole
        self.remaining = num_chunks
        self.normalize = normalize
        self.mean = WeightedMean()

    @property
    def abandoned(self) -> bool:
        return self.pending.abandoned or self.remaining < 0

    def start(self, now: float) -> None:
        self.pending.start(now)

    def receive(self, sequence: Sequence, answer: Answer) -> None:
        if self.abandoned:
            return
        if isinstance(answer, PoolingError):
            self.remaining = -1  # one chunk that fails takes the text with it, once
            self.pending.fail(self.index, answer)
            return
        self.mean.add(answer[0], sequence.num_tokens)
        self.remaining -= 1
        if self.remaining == 0:
            vector = self.mean.result(normalize=self.normalize)
            self.pending.finish(self.index, (vector,), self.whole)
