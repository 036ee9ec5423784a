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

from cenote.engine.sequence_group import Answered, Rows
from cenote.errors import PoolingError
from cenote.inputs.chunks import WeightedMean
from cenote.inputs.limits import Limits
from cenote.inputs.tokenized_inputs import Integers, Strip
from cenote.pooling.pooler import Ask
from cenote.protocol.input_types import Input, input_size
from cenote.protocol.requests import Pooled, PoolRequest, Stacked, Task

Answers = list[Pooled | PoolingError]
Item = TypeVar("Item")

# of a text, as a rule: how much of it is a good slice can be told before it is tokenized
CHARS_PER_TOKEN = 4


class Wish(NamedTuple):
    """What is asked about an input."""

    asks: tuple[Ask, ...]
    adapter: str | None = None


class Pending:
    def __init__(
        self,
        request: PoolRequest,
        wishes: Many[Wish],
        limits: Limits,
        prompt: str | None,
        against: Many[Tensor] | None = None,
    ) -> None:
        """`wishes` is one for all inputs, or one each."""
        self.request = request
        self.limits = limits
        self.prompt = prompt
        self.against = against  # the rows of a query for each input to be compared with
        self.size = len(request.inputs)
        self.wishes = wishes if len(wishes) == 1 else list(dict.fromkeys(wishes))
        self._wish_of: Integers | None = None
        if len(self.wishes) > 1:
            numbers = {wish: number for number, wish in enumerate(self.wishes)}
            self._wish_of = np.array([numbers[wish] for wish in wishes])
        self._ends = np.cumsum(_sizes(request.inputs))
        self.num_chars = int(self._ends[-1])  # or token ids
        self.num_rendered = 0  # inputs that have become sequences
        self.num_done = 0
        self.num_tokens = 0  # of the inputs that are done
        self.num_truncated = 0  # inputs of which only a part was read
        self.admitted = time.monotonic()
        self.started: float | None = None  # when its first batch began
        self.future: Future[None] = Future()  # done when all answers have come, or none will any more
        self._arrived: SimpleQueue[Many[Answered] | None] = SimpleQueue()  # None at the end
        self._errors: dict[int, PoolingError] = {}
        self._lock = threading.Lock()  # answers come from two threads
        arrived = self._arrived  # not the whole of this, which holds the future
        self.future.add_done_callback(lambda _: arrived.put(None))

    @property
    def abandoned(self) -> bool:
        """Nobody waits any more: the caller has gone, or the request has failed already."""
        return self.future.done()

    def take(self, max_tokens: int) -> Many[Input]:
        """The next inputs to render: about so many tokens, but at least one."""
        start = self.num_rendered
        is_text = not isinstance(self.request.inputs[start], list | tuple | np.ndarray)
        most = max_tokens * (CHARS_PER_TOKEN if is_text else 1) + (self._ends[start - 1] if start else 0)
        self.num_rendered = max(start + 1, int(np.searchsorted(self._ends, most, side="right")))
        return self.request.inputs[start : self.num_rendered]

    def by_wish(self, indices: Integers) -> Iterator[tuple[Wish, Integers]]:
        """What is asked, and for each the places of the inputs of which it is."""
        if self._wish_of is None:
            yield self.wishes[0], np.arange(len(indices))
            return
        numbers = self._wish_of[indices]
        for number in np.unique(numbers):
            yield self.wishes[number], np.flatnonzero(numbers == number)

    def start(self, now: float) -> None:
        if self.started is None:
            self.started = now
            self.request.timing.queue = max(0.0, now - self.admitted - self.request.timing.tokenize)

    def receive(self, answered: Many[Answered]) -> None:
        self._arrived.put(answered)
        num_done = num_tokens = num_truncated = 0
        for each in answered:
            num_done += len(each.strip)
            num_tokens += len(each.strip.token_ids)
            num_truncated += each.strip.num_truncated
        self._count(num_done, num_tokens, num_truncated)

    def fail(self, index: int, error: PoolingError) -> None:
        if error.index is None:
            error.index = index
        if self.request.keep_going:
            self._errors[index] = error
            self._count(1)
        else:
            self.fail_all(error)

    def fail_all(self, error: PoolingError) -> None:
        with suppress(InvalidStateError):  # nobody waits any more
            self.future.set_exception(error)

    def _count(self, num_done: int, num_tokens: int = 0, num_truncated: int = 0) -> None:
        with self._lock:
            self.num_done += num_done
            self.num_tokens += num_tokens
            self.num_truncated += num_truncated
            finished = self.num_done == self.size
        if finished:
            if self.started is not None:
                self.request.timing.inference = time.monotonic() - self.started
            with suppress(InvalidStateError):  # the caller has gone, maybe this very moment
                self.future.set_result(None)

    def wait(self, on_progress: Callable[[Pending], None] | None = None, every_s: float = 0.1) -> Answers:
        """Block until all answers are there, in the order of the inputs."""
        return self.gather(lambda answered: pooled(answered, self.request.also), on_progress, every_s)

    def answers(self) -> Answers:
        """The same of a request that is done; vectors of one size are rows of one array."""
        several = list(self._arriving())
        widths = {answered.width for answered in several}
        if self._errors or len(widths) != 1 or None in widths:
            return self._in_places(several, lambda answered: pooled(answered, self.request.also))
        whole = Answered.in_order(several)
        return Stacked(pooled(whole, ()), whole.rows[0].values)

    def gather(
        self,
        make: Callable[[Answered], Many[Item]],
        on_progress: Callable[[Pending], None] | None = None,
        every_s: float = 0.1,
    ) -> list[Item | PoolingError]:
        """The same, with something made of answers as soon as they have come: others are still being computed.

        Leaving early, as on Ctrl-C, abandons the rest.
        """
        try:
            made = self._in_places(self._arriving(on_progress, every_s), make)
            self.future.result()
        finally:
            self.future.cancel()
        return made

    def _in_places(
        self, arriving: Iterable[Answered], make: Callable[[Answered], Many[Item]]
    ) -> list[Item | PoolingError]:
        made: list[Item | PoolingError | None] = [None] * self.size
        for answered in arriving:
            for index, item in zip(answered.indices.tolist(), make(answered), strict=True):
                made[index] = item
        for index, error in self._errors.items():
            made[index] = error
        return made  # type: ignore[return-value]  # every place has been filled, or the request has failed

    def _arriving(
        self, on_progress: Callable[[Pending], None] | None = None, every_s: float = 0.1
    ) -> Iterator[Answered]:
        several: Many[Answered] | None = ()
        while several is not None:
            yield from several
            if on_progress is not None:
                on_progress(self)
            try:
                several = self._arrived.get(timeout=None if on_progress is None else every_s)
            except Empty:
                several = ()
        if on_progress is not None:
            on_progress(self)


def pooled(answered: Answered, also: Many[Task]) -> list[Pooled]:
    """An object for every answer."""
    strip = answered.strip
    ids, ends = strip.token_ids, strip.offsets.tolist()
    data, *others = answered.each()
    totals, exact = strip.facts["num_input_tokens"].tolist(), (strip.facts["exact"] != 0).tolist()
    answers = [
        Pooled(row, ids[start:end], end - start, total, is_exact)
        for row, start, end, total, is_exact in zip(data, ends, ends[1:], totals, exact, strict=False)
    ]
    if also:
        for answer, rest in zip(answers, zip(*others, strict=True), strict=True):
            answer.others = dict(zip(also, rest, strict=True))
    return answers


class LongText:
    """The chunks of one input, merged into one answer as they come."""

    def __init__(self, pending: Pending, index: int, whole: Strip, num_chunks: int, normalize: bool) -> None:
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

    def receive(self, answered: Many[Answered]) -> None:
        if self.abandoned:
            return
        for chunks in answered:
            for vector, num_tokens in zip(chunks.rows[0].each(), chunks.strip.lengths.tolist(), strict=True):
                self.mean.add(vector, num_tokens)
            self.remaining -= len(chunks.strip)
        if self.remaining == 0:
            vector = self.mean.result(normalize=self.normalize)
            self.pending.receive([Answered(self.whole, np.array([self.index]), (Rows(vector[None]),))])

    def fail(self, index: int, error: PoolingError) -> None:
        if not self.abandoned:
            self.remaining = -1  # one chunk that fails takes the text with it, once
            self.pending.fail(self.index, error)


def _sizes(inputs: Many[Input]) -> Integers:
    plain = set(map(type, inputs)) <= {str, list, tuple, np.ndarray}
    return np.fromiter(map(len if plain else input_size, inputs), dtype=np.int64, count=len(inputs))  # type: ignore[arg-type]
