"""Requests with many images, a few inputs at a time: what has been read of them is far larger than what was sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import Tensor

from cenote.engine.request_state import PoolResults, RequestState
from cenote.errors import PoolingError
from cenote.protocol.params import PoolingParams
from cenote.protocol.requests import PoolRequest, Timing

# while one portion is computed, the next one is read
MIN_SUB_REQUEST_INPUTS = 8
# and more of them where it is known that all are small: so many bytes, and so many inputs
MAX_SUB_REQUEST_BYTES, MAX_SUB_REQUEST_INPUTS = 32 << 20, 256


@dataclass(frozen=True, slots=True)
class SubRequest:
    """Neighbours among the inputs of a request."""

    offset: int  # the first of them
    request: PoolRequest
    query_embeddings: Sequence[Tensor] | None = None

    @contextmanager
    def error_index_scope(self) -> Iterator[None]:
        """Errors say which of all inputs it was."""
        try:
            yield
        except PoolingError as error:
            self.shift_error_index(error)
            raise

    def shift_error_index(self, result: object) -> None:
        if isinstance(result, PoolingError) and result.index is not None:
            result.index += self.offset


def compute_sub_request_size(max_input_bytes: int | None) -> int:
    """Of which each has so many bytes at most, once it is read; None: nobody knows."""
    return (
        MIN_SUB_REQUEST_INPUTS
        if not max_input_bytes
        else max(MIN_SUB_REQUEST_INPUTS, min(MAX_SUB_REQUEST_INPUTS, MAX_SUB_REQUEST_BYTES // max_input_bytes))
    )


def split_request(
    request: PoolRequest,
    num_with_images: int,
    query_embeddings: Sequence[Tensor] | None = None,
    max_inputs: int = MIN_SUB_REQUEST_INPUTS,
) -> list[SubRequest]:
    """The whole request, where few of its inputs have images."""
    size = len(request.inputs)
    if num_with_images <= max_inputs:
        return [SubRequest(0, request, query_embeddings)]
    parts = [slice(start, start + max_inputs) for start in range(0, size, max_inputs)]
    return [
        SubRequest(
            part.start, _slice_request(request, part), None if query_embeddings is None else query_embeddings[part]
        )
        for part in parts
    ]


async def run_sub_requests(
    sub_requests: Sequence[SubRequest],
    preprocess: Callable[[PoolRequest], Awaitable[PoolRequest]],
    run: Callable[[SubRequest, PoolRequest], Awaitable[PoolResults]],
    timing: Timing,
) -> PoolResults:
    """All answers, in the order of the inputs."""
    found: PoolResults = []
    reading = asyncio.ensure_future(preprocess(sub_requests[0].request))
    try:
        for portion, following in zip(sub_requests, (*sub_requests[1:], None), strict=True):
            with portion.error_index_scope():
                request = await reading
                if following is not None:
                    reading = asyncio.ensure_future(preprocess(following.request))
                own = await run(portion, request)
            for answer in own:
                portion.shift_error_index(answer)
            found += own
            timing.add_sequential(request.timing)
    finally:
        reading.cancel()
        reading.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody asks for it any more
    return found


def submit_sub_requests(
    sub_requests: Sequence[SubRequest],
    preprocess: Callable[[PoolRequest], PoolRequest],
    submit: Callable[[SubRequest, PoolRequest], RequestState],
) -> Iterator[tuple[SubRequest, RequestState]]:
    """Every portion on its way, the next one read before anybody waits for it."""
    last: tuple[SubRequest, RequestState] | None = None
    for portion in sub_requests:
        request = preprocess(portion.request)
        if last is not None:
            yield last
        with portion.error_index_scope():
            last = portion, submit(portion, request)
    assert last is not None, "a request has at least one"
    yield last


def _slice_request(request: PoolRequest, indices: slice) -> PoolRequest:
    params, adapter = request.params, request.adapter
    if isinstance(params, Sequence) and not isinstance(params, PoolingParams):
        params = params[indices]
    if adapter is not None and not isinstance(adapter, str):
        adapter = adapter[indices]
    return replace(request, inputs=request.inputs[indices], params=params, adapter=adapter, timing=Timing())
