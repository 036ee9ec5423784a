"""Run gRPC calls as HTTP requests are run: API keys, admission, deadlines, access log and metrics."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from cenote.api.admission.request_admission import RequestAdmission
from cenote.api.api_keys import KeySettings
from cenote.api.app_state import AppState
from cenote.api.auth import UNAUTHORIZED_MESSAGE
from cenote.api.dialects.dialect import Route, adapt_advice
from cenote.api.grpc.messages import Message, MessageParser
from cenote.api.grpc.receiver import Receiver
from cenote.api.grpc.statuses import get_message, get_status_code, make_error_metadata
from cenote.api.log_config import log_reply
from cenote.api.replies import logger
from cenote.api.request_context import RequestContext
from cenote.api.selected_model import make_unsupported_error
from cenote.errors import (
    BadRequest,
    BodyTooLarge,
    Overloaded,
    PoolingError,
    Unauthorized,
    make_internal_error,
)
from cenote.utils.request_ids import SAFE_REQUEST_ID

# requests of one stream that are computed at the same time; further ones are read when the first is answered
MAX_STREAM_REQUESTS = 64
CLIENT_CLOSED_REQUEST = 499
COPIES = 2  # of a message: as it was received, and its texts

ResultT = TypeVar("ResultT")
Handler = Callable[[Any, RequestContext], Awaitable[Any]]  # from a request message to a response message


@dataclass(slots=True)
class GrpcRequest:
    """The messages of a request, which count as held until its response is sent."""

    admission: RequestAdmission
    messages: list[bytes]

    def count_bytes(self) -> int:
        return sum(map(len, self.messages))


@dataclass(frozen=True, slots=True)
class CallRunner:
    """Run the calls of one method. Messages are received if there is a place for them, and parsed if the call may run.

    A call that fails returns without a response: its status has been set then.
    """

    path: str  # full name of the method
    route: Route  # of HTTP, with the same task
    handler: Handler
    parser: MessageParser
    app_state: AppState
    receiver: Receiver

    async def refuse(self, requests: AsyncIterator[bytes], grpc_context: Any) -> None:
        """Answer a call without a valid key: none of its messages is received."""
        async with GrpcCall(self, grpc_context) as call:
            call.authenticate()

    async def run_unary(self, requests: AsyncIterator[bytes], grpc_context: Any) -> None:
        async with GrpcCall(self, grpc_context) as call:
            request = await call.receive()
            if request is None:
                raise BadRequest(f"the call has no message; expected a {self.parser.name}")
            await call.send(await call.run(request), request)

    async def run_client_stream(self, requests: AsyncIterator[bytes], grpc_context: Any) -> None:
        """Compute one response for all messages of a stream."""
        async with GrpcCall(self, grpc_context) as call:
            request = None
            while (received := await call.receive(request)) is not None:
                request = received
                call.check_stream(request)
            if request is None:
                request = GrpcRequest(call.make_admission(0), [])
            await call.send(await call.run(request, is_stream=True), request)

    async def run_stream(self, requests: AsyncIterator[bytes], grpc_context: Any) -> None:
        """Send a response for every message, in their order; the first error ends the stream."""
        async with GrpcCall(self, grpc_context) as call:
            places = asyncio.Semaphore(MAX_STREAM_REQUESTS)
            running: asyncio.Queue[tuple[GrpcRequest, asyncio.Task[Message]] | None] = asyncio.Queue()
            started: set[asyncio.Task[Message]] = set()

            async def start_all() -> None:
                while await places.acquire() and (request := await call.receive(is_patient=True)) is not None:
                    task = asyncio.create_task(call.run_patiently(request))
                    started.add(task)
                    task.add_done_callback(started.discard)
                    running.put_nowait((request, task))

            reader = asyncio.create_task(start_all())
            reader.add_done_callback(lambda _: running.put_nowait(None))
            try:
                while (next_one := await running.get()) is not None:
                    request, task = next_one
                    await call.send(await task, request)
                    places.release()
                await reader
            finally:
                for unfinished in [reader, *started]:
                    unfinished.cancel()
                await asyncio.gather(reader, *started, return_exceptions=True)


class GrpcCall:
    """A call in progress: as a context manager, it turns errors into statuses, and counts and logs the call."""

    def __init__(self, runner: CallRunner, grpc_context: Any) -> None:
        self.runner = runner
        self.app_state = runner.app_state
        self.requests: list[GrpcRequest] = []  # that have no response yet
        self.grpc_context = grpc_context
        self.headers = encode_metadata(grpc_context.invocation_metadata())
        client_id = self.headers.get(b"x-request-id", b"").decode("latin-1")
        self.request_id = client_id if SAFE_REQUEST_ID.fullmatch(client_id) else os.urandom(16).hex()
        self.key: KeySettings | None = None
        self.context: RequestContext | None = None  # of the last request
        self.started_at = time.perf_counter()

    async def __aenter__(self) -> GrpcCall:
        self.app_state.num_in_flight += 1
        self.grpc_context.set_trailing_metadata((("x-request-id", self.request_id),))
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        self.app_state.num_in_flight -= 1
        for request in self.requests:
            request.admission.set_held(0)
        status = 200
        if isinstance(error, asyncio.CancelledError | GeneratorExit):  # by the client, its deadline, or at shutdown
            status = CLIENT_CLOSED_REQUEST
        elif isinstance(error, Exception):
            pooling_error = self._to_pooling_error(error)
            status = pooling_error.status
            self._set_status(pooling_error)
        self._record(status)
        return isinstance(error, Exception)

    def _to_pooling_error(self, error: Exception) -> PoolingError:
        if isinstance(error, PoolingError):
            if error.status == 500:
                logger.error("request %s: %s", self.request_id, error)
            return error
        logger.error("request %s failed", self.request_id, exc_info=error)
        return make_internal_error(f"internal server error; see the server log, request {self.request_id}", error)

    def _set_status(self, error: PoolingError) -> None:
        """Set the status of an error. `abort` would raise one that grpcio keeps, with the request in its frames."""
        adapt_advice(error, "Set truncate=true")
        self.grpc_context.set_trailing_metadata((("x-request-id", self.request_id), *make_error_metadata(error)))
        self.grpc_context.set_code(get_status_code(error))
        self.grpc_context.set_details(get_message(error))

    def _record(self, status: int) -> None:
        seconds = time.perf_counter() - self.started_at
        scope = {
            "path": self.runner.path,
            "raw_path": self.runner.path.encode(),
            "method": "GRPC",
            "request_id": self.request_id,
            "context": self.context,
            "client": (parse_peer(self.grpc_context.peer()), 0),
            "key": None if self.key is None else self.key.tenant[:8],
        }
        log_reply(scope, status, seconds)
        self.app_state.metrics.observe_http(self.runner.path, "GRPC", status, seconds)

    def authenticate(self) -> None:
        """Raise unless the metadata has a valid API key now, or none is needed: a stream may outlive its key."""
        api_keys = self.app_state.api_keys
        if api_keys.is_required:
            self.key = api_keys.find(self.headers.items())
            if self.key is None:
                raise Unauthorized(UNAUTHORIZED_MESSAGE)

    def check_stream(self, request: GrpcRequest) -> None:
        """Raise if the messages of a client stream are more than a request may have."""
        settings = self.app_state.settings
        if len(request.messages) > settings.max_request_items:
            raise BodyTooLarge(
                f"the stream has more than {settings.max_request_items} messages, the limit of a request; split it, or "
                "raise --max-request-items"
            )
        if request.count_bytes() > settings.max_body_bytes:
            raise BodyTooLarge(
                f"the stream has more than {settings.max_body_bytes} bytes, the limit of a request; split it, or raise "
                "--max-body-bytes"
            )

    async def receive(self, request: GrpcRequest | None = None, *, is_patient: bool = False) -> GrpcRequest | None:
        """Receive a message, of this request or of a new one, and count its bytes; return None at the end.

        `is_patient`: wait until the bytes fit.
        """
        async with self.runner.receiver.place():
            message = await self.grpc_context.read()
            if message is grpc.aio.EOF:
                return None
            self.authenticate()
            if is_patient:
                return await self._retry(lambda: self._count(message, request, is_patient))
            return await self._count(message, request, is_patient)

    async def _count(self, message: bytes, request: GrpcRequest | None, is_patient: bool) -> GrpcRequest:
        num_bytes = len(message)
        admission = self.make_admission(num_bytes) if request is None else request.admission
        if is_patient:
            admission.controller.check_half(COPIES * num_bytes)
        admission.hold(COPIES * num_bytes, "the message")
        if request is None:
            request = GrpcRequest(admission, [])
            self.requests.append(request)
        request.messages.append(message)
        return request

    def make_admission(self, num_bytes: int) -> RequestAdmission:
        """Return the admission of a request whose first message has so many bytes; raise if it is refused already."""
        app_state = self.app_state
        admission = RequestAdmission(app_state.admission, app_state.api_keys, self.key)
        headers = {**self.headers, b"content-length": b"%d" % num_bytes}
        admission.read_headers(headers, app_state.settings.request_timeout_s)
        if (remaining_s := self.grpc_context.time_remaining()) is not None:
            admission.set_timeout(max(0.0, remaining_s))
        return admission

    async def send(self, message: Message, request: GrpcRequest) -> None:
        """Send the response; the request counts as held until the client has received nearly all of it.

        gRPC cannot end a call whose response waits for its client: that takes the end of the connection.
        """
        await self.grpc_context.write(message)
        request.admission.set_held(0)
        self.requests.remove(request)

    async def run_patiently(self, request: GrpcRequest) -> Message:
        """As `run`, but wait while the server is overloaded: a stream has no more requests in flight than its limit."""
        return await self._retry(lambda: self.run(request))

    async def _retry(self, attempt: Callable[[], Awaitable[ResultT]]) -> ResultT:
        while True:
            try:
                return await attempt()
            except Overloaded as error:
                remaining_s = self.grpc_context.time_remaining()
                if remaining_s is not None and remaining_s <= error.retry_after_s:
                    raise
                await asyncio.sleep(error.retry_after_s)

    async def run(self, request: GrpcRequest, *, is_stream: bool = False) -> Message:
        """Compute the response for a message, or for all those of a stream."""
        header_model = self.headers.get(b"x-model")
        context = self.context = RequestContext(
            self.app_state, self.runner.route, self.request_id, request.admission, header_model
        )
        context.timing.received_at = time.monotonic()
        try:
            return await run_until_deadline(self._handle(request, context, is_stream), request.admission)
        except BaseException:
            request.admission.set_held(COPIES * request.count_bytes())
            raise
        finally:
            context.release()

    async def _handle(self, request: GrpcRequest, context: RequestContext, is_stream: bool) -> Message:
        await context.select_model(None)
        route, model_info = self.runner.route, context.model_info
        if not route.is_supported(model_info):
            raise make_unsupported_error(route, model_info, "call grpc.health.v1.Health/Check for its services")
        messages = [self.runner.parser.parse(message) for message in request.messages]
        return await self.runner.handler(messages if is_stream else messages[0], context)


async def run_until_deadline(work: Awaitable[Message], admission: RequestAdmission) -> Message:
    """Await the handler; cancel it at the deadline."""
    if not admission.deadline_at:
        return await work
    timeout = asyncio.timeout(max(0.0, admission.deadline_at - time.monotonic()))
    try:
        async with timeout:
            return await work
    except TimeoutError:
        if not timeout.expired():
            raise
        raise admission.make_expired_error() from None


def encode_metadata(metadata: Iterable[tuple[str, str | bytes]] | None) -> dict[bytes, bytes]:
    """Return the metadata of a call as HTTP headers."""
    return {name.encode(): value if isinstance(value, bytes) else value.encode() for name, value in metadata or ()}


def parse_peer(peer: str) -> str:
    """Return the address of gRPC's "ipv4:127.0.0.1:5000" or "ipv6:%5B::1%5D:5000"."""
    address = peer.partition(":")[2].rpartition(":")[0]
    return address.removeprefix("%5B").removesuffix("%5D") or peer
