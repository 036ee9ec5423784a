"""Run gRPC calls as HTTP requests are run: API keys, admission, deadlines, access log and metrics."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from cenote.api.admission.request_admission import SMALL_BYTES, RequestAdmission
from cenote.api.app_state import AppState
from cenote.api.auth import UNAUTHORIZED_MESSAGE
from cenote.api.dialects.dialect import Route
from cenote.api.grpc.statuses import get_message, get_status_code, make_error_metadata
from cenote.api.key_settings import KeySettings
from cenote.api.log_config import log_reply
from cenote.api.replies import logger
from cenote.api.request_context import RequestContext
from cenote.api.selected_model import make_unsupported_error
from cenote.errors import BodyTooLarge, Overloaded, PoolingError, Unauthorized, make_internal_error
from cenote.utils.request_ids import SAFE_REQUEST_ID

# requests of one stream that are computed at the same time; further ones are read when the first is answered
MAX_STREAM_REQUESTS = 64
CLIENT_CLOSED_REQUEST = 499

Handler = Callable[[Any, RequestContext], Awaitable[Any]]  # from a request message to a response message
Message = Any


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a service: its full name, the HTTP route with the same task, and what computes a response."""

    path: str
    route: Route
    handler: Handler


class CallRunner:
    """Run the calls of one method."""

    def __init__(self, method: Method, app_state: AppState) -> None:
        self.method = method
        self.app_state = app_state

    async def run_unary(self, request: Message, grpc_context: Any) -> Message:
        call = Call(self.method, self.app_state, grpc_context)
        async with call:
            call.authenticate()
            return await call.run(request, request.ByteSize())
        raise AssertionError("the call was aborted")

    async def run_client_stream(self, requests: AsyncIterator[Message], grpc_context: Any) -> Message:
        """Compute one response for all messages of a stream."""
        call = Call(self.method, self.app_state, grpc_context)
        async with call:
            call.authenticate()
            messages, size = [], 0
            async for message in requests:
                messages.append(message)
                size += message.ByteSize()
                call.check_stream(len(messages), size)
            return await call.run(messages, size)
        raise AssertionError("the call was aborted")

    async def run_stream(self, requests: AsyncIterator[Message], grpc_context: Any) -> AsyncIterator[Message]:
        """Compute a response for every message, in their order; the first error ends the stream."""
        call = Call(self.method, self.app_state, grpc_context)
        async with call:
            call.authenticate()
            tasks: asyncio.Queue[asyncio.Task[Message] | None] = asyncio.Queue(MAX_STREAM_REQUESTS)
            started: set[asyncio.Task[Message]] = set()

            async def start_all() -> None:
                async for request in requests:
                    task = asyncio.create_task(call.run_patiently(request, request.ByteSize()))
                    started.add(task)
                    task.add_done_callback(started.discard)
                    await tasks.put(task)
                await tasks.put(None)

            reader = asyncio.create_task(start_all())
            try:
                while (task := await tasks.get()) is not None:
                    yield await task
                await reader
            finally:
                for unfinished in [reader, *started]:
                    unfinished.cancel()
                await asyncio.gather(reader, *started, return_exceptions=True)


class Call:
    """A call in progress: as a context manager, it turns errors into statuses, and counts and logs the call."""

    def __init__(self, method: Method, app_state: AppState, grpc_context: Any) -> None:
        self.method = method
        self.app_state = app_state
        self.grpc_context = grpc_context
        self.headers = {
            name.encode(): value if isinstance(value, bytes) else value.encode()
            for name, value in grpc_context.invocation_metadata() or ()
        }
        client_id = self.headers.get(b"x-request-id", b"").decode("latin-1")
        self.request_id = client_id if SAFE_REQUEST_ID.fullmatch(client_id) else os.urandom(16).hex()
        self.key: KeySettings | None = None
        self.context: RequestContext | None = None  # of the last request
        self.started_at = time.perf_counter()

    async def __aenter__(self) -> Call:
        self.app_state.num_in_flight += 1
        self.grpc_context.set_trailing_metadata((("x-request-id", self.request_id),))
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.app_state.num_in_flight -= 1
        status = 200
        if isinstance(error, asyncio.CancelledError | GeneratorExit):  # by the client, its deadline, or at shutdown
            status = CLIENT_CLOSED_REQUEST
        elif isinstance(error, Exception):
            pooling_error = self._to_pooling_error(error)
            status = pooling_error.status
        self._record(status)
        if isinstance(error, Exception):
            await self._abort(pooling_error)

    def _to_pooling_error(self, error: Exception) -> PoolingError:
        if isinstance(error, PoolingError):
            if error.status == 500:
                logger.error("request %s: %s", self.request_id, error)
            return error
        logger.error("request %s failed", self.request_id, exc_info=error)
        return make_internal_error(f"internal server error; see the server log, request {self.request_id}", error)

    async def _abort(self, error: PoolingError) -> NoReturn:
        metadata = (("x-request-id", self.request_id), *make_error_metadata(error))
        await self.grpc_context.abort(get_status_code(error), get_message(error), metadata)
        raise AssertionError("abort raises")

    def _record(self, status: int) -> None:
        seconds = time.perf_counter() - self.started_at
        scope = {
            "path": self.method.path,
            "raw_path": self.method.path.encode(),
            "method": "GRPC",
            "request_id": self.request_id,
            "context": self.context,
            "client": (parse_peer(self.grpc_context.peer()), 0),
            "key": None if self.key is None else self.key.tenant[:8],
        }
        log_reply(scope, status, seconds)
        self.app_state.metrics.observe_http(self.method.path, "GRPC", status, seconds)

    def authenticate(self) -> None:
        """Raise unless the metadata has a valid API key, or none is needed."""
        api_keys = self.app_state.api_keys
        if api_keys.is_required:
            self.key = api_keys.find(self.headers.items())
            if self.key is None:
                raise Unauthorized(UNAUTHORIZED_MESSAGE)

    def check_stream(self, num_messages: int, num_bytes: int) -> None:
        """Raise if the messages of a client stream are more than a request may have."""
        settings = self.app_state.settings
        if num_messages > settings.max_request_items:
            raise BodyTooLarge(
                f"the stream has more than {settings.max_request_items} messages, the limit of a request; split it, or "
                "raise --max-request-items"
            )
        if num_bytes > settings.max_body_bytes:
            raise BodyTooLarge(
                f"the stream has more than {settings.max_body_bytes} bytes, the limit of a request; split it, or raise "
                "--max-body-bytes"
            )

    async def run_patiently(self, request: Message, num_bytes: int) -> Message:
        """As `run`, but wait while the server is overloaded: a stream has no more requests in flight than its limit."""
        while True:
            try:
                return await self.run(request, num_bytes)
            except Overloaded as error:
                remaining_s = self.grpc_context.time_remaining()
                if remaining_s is not None and remaining_s <= error.retry_after_s:
                    raise
                await asyncio.sleep(error.retry_after_s)

    async def run(self, request: Message, num_bytes: int) -> Message:
        app_state, settings = self.app_state, self.app_state.settings
        admission = RequestAdmission(app_state.admission, app_state.api_keys, self.key)
        header_model = self.headers.get(b"x-model")
        context = self.context = RequestContext(
            app_state.models,
            app_state.load_model,
            self.method.route,
            settings,
            self.request_id,
            admission,
            None if header_model is None else header_model.decode("latin-1"),
        )
        context.timing.received_at = time.monotonic()
        try:
            headers = {**self.headers, b"content-length": b"%d" % num_bytes}
            admission.read_headers(headers, settings.request_timeout_s)
            if (remaining_s := self.grpc_context.time_remaining()) is not None:
                admission.set_timeout(max(0.0, remaining_s))
            if num_bytes > SMALL_BYTES:
                admission.hold(num_bytes)
            return await run_until_deadline(self._handle(request, context), admission)
        finally:
            admission.hold_instead(0)
            context.release()

    async def _handle(self, request: Message, context: RequestContext) -> Message:
        await context.select_model(None)
        route, model_info = self.method.route, context.model_info
        if not route.is_supported(model_info):
            raise make_unsupported_error(route, model_info, "call grpc.health.v1.Health/Check for its services")
        return await self.method.handler(request, context)


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


def parse_peer(peer: str) -> str:
    """Return the address of gRPC's "ipv4:127.0.0.1:5000" or "ipv6:%5B::1%5D:5000"."""
    address = peer.partition(":")[2].rpartition(":")[0]
    return address.removeprefix("%5B").removesuffix("%5D") or peer
