"""Split requests with many images into sub-requests: preprocessed images take far more memory than encoded ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from cenote.errors import PoolingError
from cenote.protocol.params import PoolingParams
from cenote.protocol.requests import PoolRequest, Timing

T = TypeVar("T")

# while one sub-request is computed, the next one is preprocessed
MIN_SUB_REQUEST_INPUTS = 8
# models whose preprocessed images have a small known size get larger sub-requests, up to these limits
MAX_SUB_REQUEST_BYTES, MAX_SUB_REQUEST_INPUTS = 32 << 20, 256
# sub-requests after the first wait while this much is in flight
MAX_IN_FLIGHT_BYTES = 256 * 1024**2
# and check so often whether they may go on
CAPACITY_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class SubRequest:
    """A slice of the inputs of a request."""

    offset: int  # index of its first input in the request
    request: PoolRequest

    @contextmanager
    def error_index_scope(self) -> Iterator[None]:
        """Convert `index` of errors raised inside to an index into the inputs of the whole request."""
        try:
            yield
        except PoolingError as error:
            self.shift_error_index(error)
            raise

    def shift_error_index(self, result: object) -> None:
        if isinstance(result, PoolingError) and result.index is not None:
            result.index += self.offset


class PendingRequest(Protocol):
    """A request whose images are being preprocessed in the background."""

    def __await__(self) -> Generator[Any, Any, PoolRequest]: ...

    def cancel(self) -> object: ...


def compute_sub_request_size(max_input_bytes: int | None) -> int:
    """Return the inputs per sub-request, given the size of a preprocessed input; None: unknown."""
    if not max_input_bytes:
        return MIN_SUB_REQUEST_INPUTS
    return max(MIN_SUB_REQUEST_INPUTS, min(MAX_SUB_REQUEST_INPUTS, MAX_SUB_REQUEST_BYTES // max_input_bytes))


def split_request(
    request: PoolRequest,
    num_with_images: int,
    max_inputs: int = MIN_SUB_REQUEST_INPUTS,
) -> list[SubRequest]:
    """Split a request into sub-requests of `max_inputs`; one whose images fit a sub-request stays as it is."""
    if num_with_images <= max_inputs:
        return [SubRequest(0, request)]
    slices = [slice(start, start + max_inputs) for start in range(0, len(request.inputs), max_inputs)]
    return [SubRequest(indices.start, _slice_request(request, indices)) for indices in slices]


async def run_sub_requests(
    sub_requests: Sequence[SubRequest],
    start_preprocess: Callable[[PoolRequest], PendingRequest],
    pool: Callable[[SubRequest, PoolRequest], Awaitable[list[T]]],
    timing: Timing,
) -> list[T]:
    """Return the results of all sub-requests in the order of the inputs; add their times to `timing`.

    The images of the next sub-request are preprocessed while `pool` computes one, whose second argument has its images
    preprocessed. Functions that block instead of awaiting make a synchronous call.
    """
    if len(sub_requests) == 1:  # holds the whole request and its timing
        return await pool(sub_requests[0], await start_preprocess(sub_requests[0].request))
    results: list[T] = []
    pending: PendingRequest | None = start_preprocess(sub_requests[0].request)
    try:
        for sub_request, following in zip(sub_requests, (*sub_requests[1:], None), strict=True):
            with sub_request.error_index_scope():
                assert pending is not None, "started before"
                request = await pending
                pending = None if following is None else start_preprocess(following.request)
                part = await pool(sub_request, request)
            for result in part:
                sub_request.shift_error_index(result)
            results += part
            timing.add_sequential(request.timing)
    finally:
        if pending is not None:
            pending.cancel()
    return results


def _slice_request(request: PoolRequest, indices: slice) -> PoolRequest:
    params, adapter = request.params, request.adapter
    if isinstance(params, Sequence) and not isinstance(params, PoolingParams):
        params = params[indices]
    if adapter is not None and not isinstance(adapter, str):
        adapter = adapter[indices]
    inputs, operands = request.inputs[indices], request.operands and request.operands[indices]
    return request.replace(
        inputs=inputs,
        params=params,
        adapter=adapter,
        operands=operands,
        timing=Timing(),
        num_chars=None,
        on_tokenized=None,  # no part knows the tokens of all
    )
