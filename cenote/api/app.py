"""Builds the app from a list of dialects: bodies in, handlers asked, replies and errors out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path
from starlette.types import ASGIApp, Receive, Scope, Send

from cenote.api.app_state import AppState
from cenote.api.dialects import DIALECTS
from cenote.api.dialects.dialect import Dialect, Route
from cenote.api.dialects.lora_adapters import LORA_ADAPTERS
from cenote.api.docs import make_docs_routes
from cenote.api.middleware import RequestMiddleware, get_header
from cenote.api.replies import Reply, error_reply, send_reply, status_error_reply, to_response
from cenote.api.request_body import check_media_type, check_raw_body, parse_body
from cenote.api.request_context import RequestContext
from cenote.api.system_routes import make_system_routes
from cenote.errors import BodyTooLarge, NotOffered, PoolingError
from cenote.protocol.model_info import ModelInfo

logger = logging.getLogger("cenote")

CLIENT_CLOSED_REQUEST = 499


def build_app(app_state: AppState, dialects: Sequence[Dialect] = DIALECTS) -> ASGIApp:
    if app_state.settings.allow_runtime_lora_updating:
        dialects = (*dialects, LORA_ADAPTERS)
    routes = [route for dialect in dialects for route in dialect.routes]
    endpoints = {path: Endpoint(app_state, route, routes) for route in reversed(routes) for path in route.paths}
    paths = [Path(path, endpoint, methods=["POST"]) for path, endpoint in endpoints.items()]
    app = Starlette(
        routes=[*paths, *make_system_routes(app_state, routes), *make_docs_routes(app_state, routes)],
        exception_handlers={
            HTTPException: _handle_http_error,
            PoolingError: _handle_pooling_error,
            Exception: _handle_unexpected_error,
        },
    )
    return RequestMiddleware(FastRouter(endpoints, app), app_state)


class FastRouter:
    """To what is asked for thousands of times a second without a detour; everything else goes the usual way."""

    def __init__(self, endpoints: Mapping[str, ASGIApp], app: ASGIApp) -> None:
        self.endpoints = endpoints
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.endpoints.get(scope["path"], self.app) if scope.get("method") == "POST" else self.app
        await app(scope, receive, send)


class Endpoint:
    """One route: a body in, its handler asked, a reply or an error out."""

    def __init__(self, app_state: AppState, route: Route, routes: Sequence[Route]) -> None:
        self.app_state = app_state
        self.route = route
        self.routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reply = await self._handle(scope, receive)
        except PoolingError as error:
            reply = error_reply(error)
        if reply is None:  # the client hung up
            reply = Reply(b"", CLIENT_CLOSED_REQUEST, media_type="")
        call: RequestContext | None = scope.get("call")
        await send_reply(reply, call.response_headers() if call and reply.status != CLIENT_CLOSED_REQUEST else {}, send)

    async def _handle(self, scope: Scope, receive: Receive) -> Reply | None:
        service, route = self.app_state, self.route
        scope["handler"] = route.paths[0]
        engine = service.engine
        if not route.is_supported(engine.model_info):
            raise unsupported_route_error(route, self.routes, engine.model_info)
        check_media_type(get_header(scope, b"content-type"), get_header(scope, b"content-encoding"))
        raw = await read_body(get_header(scope, b"content-length"), receive, service.settings.max_body_bytes)
        if raw is None:
            return None
        check_raw_body(raw)
        body = parse_body(route.body_type, raw)
        call = RequestContext(engine, service.settings, scope["request_id"], scope.get("tenant") or "")
        scope["call"] = call
        return await run_until_disconnect(receive, route.handler(body, call))


async def read_body(content_length: str | None, receive: Receive, max_bytes: int) -> bytes | None:
    """The whole body, None if its client goes; one that is too long is refused as soon as that shows."""
    if content_length is not None and content_length.isdecimal() and int(content_length) > max_bytes:
        raise body_too_large_error(max_bytes, content_length)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > max_bytes:
            raise body_too_large_error(max_bytes, "more")
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def body_too_large_error(max_bytes: int, got: str) -> BodyTooLarge:
    advice = "send several, or raise --max-body-bytes"
    return BodyTooLarge(f"a request has at most {max_bytes} bytes, this one has {got}; {advice}")


async def run_until_disconnect(receive: Receive, work: Awaitable[Reply]) -> Reply | None:
    """The reply; None when the client hangs up first, and then the work is dropped as well."""
    asking = asyncio.current_task()
    assert asking is not None, "there is always one"
    gone = asyncio.ensure_future(receive())  # after the body, the only thing that comes is the end
    waits, left = True, False

    def leave(_: object) -> None:
        nonlocal left
        if waits:
            left = True
            asking.cancel()

    gone.add_done_callback(leave)
    try:
        return await work
    except asyncio.CancelledError:
        if not left or asking.uncancel():  # somebody else wants this to end
            raise
        return None
    except PoolingError:
        if left:
            asking.uncancel()
            return None
        raise
    finally:
        waits = False
        gone.cancel()


def unsupported_route_error(route: Route, routes: Sequence[Route], model_info: ModelInfo) -> NotOffered:
    offered = sorted({path for each in routes if each.is_supported(model_info) for path in each.paths[:1]})
    return NotOffered(
        f"The model does not support {route.api_name} API. {model_info.name} is a {model_info.architecture} with the "
        f"tasks "
        f"{', '.join(model_info.tasks)}; it answers at {', '.join(offered)}"
    )


async def _handle_pooling_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, PoolingError)
    call: RequestContext | None = http.scope.get("call")
    return to_response(error_reply(error), call.response_headers() if call else None)


async def _handle_http_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{http.method} {http.url.path}: {error.detail}"
    return to_response(status_error_reply(error.status_code, message), dict(error.headers or {}))


async def _handle_unexpected_error(http: Request, error: Exception) -> Response:
    """A bug: the log has all of it, the client only what helps to find it there."""
    logger.error("request %s failed", http.scope["request_id"], exc_info=error)
    return to_response(
        status_error_reply(500, f"something went wrong here; the log knows it as {http.scope['request_id']}")
    )
