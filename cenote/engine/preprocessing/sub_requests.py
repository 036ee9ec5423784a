"""Requests with many images, a few inputs at a time: what has been read of them is far larger than what was sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import Tensor

from cenote.engine.request_state import Answers, Pending
from cenote.errors import PoolingError
from cenote.protocol.requests import PoolingParams, PoolRequest, Timing

# while one portion is computed, the next one is read
INPUTS_AT_ONCE = 8
# and more of them where it is known that all are small: so many bytes, and so many inputs
BYTES_AT_ONCE, MOST_AT_ONCE = 32 << 20, 256


@dataclass(frozen=True, slots=True)
class Portion:
    """Neighbours among the inputs of a request."""

    start: int  # the first of them
    request: PoolRequest
    against: Sequence[Tensor] | None = None

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors say which of all inputs it was."""
        try:
            yield
        except PoolingError as error:
            self.rename(error)
            raise

    def rename(self, answer: object) -> None:
        if isinstance(answer, PoolingError) and answer.index is not None:
            answer.index += self.start


def inputs_at_once(most_bytes: int | None) -> int:
    """Of which each has so many bytes at most, once it is read; None: nobody knows."""
    return INPUTS_AT_ONCE if not most_bytes else max(INPUTS_AT_ONCE, min(MOST_AT_ONCE, BYTES_AT_ONCE // most_bytes))


def portions(
    request: PoolRequest,
    num_pictured: int,
    against: Sequence[Tensor] | None = None,
    at_once: int = INPUTS_AT_ONCE,
) -> list[Portion]:
    """The whole request, where few of its inputs have images."""
    size = len(request.inputs)
    if num_pictured <= at_once:
        return [Portion(0, request, against)]
    parts = [slice(start, start + at_once) for start in range(0, size, at_once)]
    return [Portion(part.start, _part(request, part), None if against is None else against[part]) for part in parts]


async def answered(
    several: Sequence[Portion],
    read: Callable[[PoolRequest], Awaitable[PoolRequest]],
    answers: Callable[[Portion, PoolRequest], Awaitable[Answers]],
    timing: Timing,
) -> Answers:
    """All answers, in the order of the inputs."""
    found: Answers = []
    reading = asyncio.ensure_future(read(several[0].request))
    try:
        for portion, following in zip(several, (*several[1:], None), strict=True):
            with portion.named():
                request = await reading
                if following is not None:
                    reading = asyncio.ensure_future(read(following.request))
                own = await answers(portion, request)
            for answer in own:
                portion.rename(answer)
            found += own
            timing.after(request.timing)
    finally:
        reading.cancel()
        reading.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody asks for it any more
    return found


def submitted(
    several: Sequence[Portion],
    read: Callable[[PoolRequest], PoolRequest],
    submit: Callable[[Portion, PoolRequest], Pending],
) -> Iterator[tuple[Portion, Pending]]:
    """Every portion on its way, the next one read before anybody waits for it."""
    last: tuple[Portion, Pending] | None = None
    for portion in several:
        request = read(portion.request)
        if last is not None:
            yield last
        with portion.named():
            last = portion, submit(portion, request)
    assert last is not None, "a request has at least one"
    yield last


def _part(request: PoolRequest, part: slice) -> PoolRequest:
    params, adapter = request.params, request.adapter
    if isinstance(params, Sequence) and not isinstance(params, PoolingParams):
        params = params[part]
    if adapter is not None and not isinstance(adapter, str):
        adapter = adapter[part]
    return replace(request, inputs=request.inputs[part], params=params, adapter=adapter, timing=Timing())
