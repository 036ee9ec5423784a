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

from cenote.api.app_state import Service
from cenote.api.dialects import DIALECTS
from cenote.api.dialects.dialect import Dialect, Route
from cenote.api.dialects.lora_adapters import ADAPTERS
from cenote.api.docs import documents
from cenote.api.middleware import Frame, header
from cenote.api.replies import Reply, error_reply, plain_error, respond, send_reply
from cenote.api.request_body import check_bytes, check_media_type, parse
from cenote.api.request_context import Call
from cenote.api.system_routes import operations
from cenote.errors import BodyTooLarge, NotOffered, PoolingError
from cenote.protocol.requests import About

logger = logging.getLogger("cenote")

CLIENT_CLOSED_REQUEST = 499


def build(service: Service, dialects: Sequence[Dialect] = DIALECTS) -> ASGIApp:
    if service.settings.allow_runtime_lora_updating:
        dialects = (*dialects, ADAPTERS)
    routes = [route for dialect in dialects for route in dialect.routes]
    endpoints = {path: Endpoint(service, route, routes) for route in reversed(routes) for path in route.paths}
    paths = [Path(path, endpoint, methods=["POST"]) for path, endpoint in endpoints.items()]
    app = Starlette(
        routes=[*paths, *operations(service, routes), *documents(service, routes)],
        exception_handlers={HTTPException: _http_error, PoolingError: _pooling_error, Exception: _unexpected},
    )
    return Frame(Directly(endpoints, app), service)


class Directly:
    """To what is asked for thousands of times a second without a detour; everything else goes the usual way."""

    def __init__(self, endpoints: Mapping[str, ASGIApp], app: ASGIApp) -> None:
        self.endpoints = endpoints
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.endpoints.get(scope["path"], self.app) if scope.get("method") == "POST" else self.app
        await app(scope, receive, send)


class Endpoint:
    """One route: a body in, its handler asked, a reply or an error out."""

    def __init__(self, service: Service, route: Route, routes: Sequence[Route]) -> None:
        self.service = service
        self.route = route
        self.routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reply = await self._answer(scope, receive)
        except PoolingError as error:
            reply = error_reply(error)
        if reply is None:  # the client hung up
            reply = Reply(b"", CLIENT_CLOSED_REQUEST, media_type="")
        call: Call | None = scope.get("call")
        await send_reply(reply, call.headers() if call and reply.status != CLIENT_CLOSED_REQUEST else {}, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Reply | None:
        service, route = self.service, self.route
        scope["handler"] = route.paths[0]
        engine = service.engine
        if not route.offered(engine.about):
            raise not_offered(route, self.routes, engine.about)
        check_media_type(header(scope, b"content-type"), header(scope, b"content-encoding"))
        raw = await read(header(scope, b"content-length"), receive, service.settings.max_body_bytes)
        if raw is None:
            return None
        check_bytes(raw)
        body = parse(route.body, raw)
        call = Call(engine, service.settings, scope["request_id"], scope.get("tenant") or "")
        scope["call"] = call
        return await unless_gone(receive, route.handler(body, call))


async def read(told: str | None, receive: Receive, limit: int) -> bytes | None:
    """The whole body, None if its client goes; one that is too long is refused as soon as that shows."""
    if told is not None and told.isdecimal() and int(told) > limit:
        raise too_large(limit, told)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise too_large(limit, "more")
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def too_large(limit: int, got: str) -> BodyTooLarge:
    advice = "send several, or raise --max-body-bytes"
    return BodyTooLarge(f"a request has at most {limit} bytes, this one has {got}; {advice}")


async def unless_gone(receive: Receive, work: Awaitable[Reply]) -> Reply | None:
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


def not_offered(route: Route, routes: Sequence[Route], about: About) -> NotOffered:
    offered = sorted({path for each in routes if each.offered(about) for path in each.paths[:1]})
    return NotOffered(
        f"The model does not support {route.api} API. {about.model} is a {about.architecture} with the tasks "
        f"{', '.join(about.tasks)}; it answers at {', '.join(offered)}"
    )


async def _pooling_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, PoolingError)
    call: Call | None = http.scope.get("call")
    return respond(error_reply(error), call.headers() if call else None)


async def _http_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{http.method} {http.url.path}: {error.detail}"
    return respond(plain_error(error.status_code, message), dict(error.headers or {}))


async def _unexpected(http: Request, error: Exception) -> Response:
    """A bug: the log has all of it, the client only what helps to find it there."""
    logger.error("request %s failed", http.scope["request_id"], exc_info=error)
    return respond(plain_error(500, f"something went wrong here; the log knows it as {http.scope['request_id']}"))
