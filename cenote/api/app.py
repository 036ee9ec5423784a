"""Builds the app from a list of dialects: bodies in, handlers asked, replies and errors out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as Path
from starlette.types import ASGIApp, Receive

from cenote.api.body import check_bytes, check_media_type, parse
from cenote.api.call import Call
from cenote.api.dialects import DIALECTS
from cenote.api.dialects.adapters import ADAPTERS
from cenote.api.dialects.dialect import Dialect, Route
from cenote.api.docs import documents
from cenote.api.frame import Frame
from cenote.api.operations import operations
from cenote.api.replies import Reply, error_reply, plain_error, respond
from cenote.api.service import Service
from cenote.errors import BodyTooLarge, NotOffered, PoolingError
from cenote.request import About

logger = logging.getLogger("cenote")

CLIENT_CLOSED_REQUEST = 499


def build(service: Service, dialects: Sequence[Dialect] = DIALECTS) -> ASGIApp:
    if service.settings.allow_runtime_lora_updating:
        dialects = (*dialects, ADAPTERS)
    routes = [route for dialect in dialects for route in dialect.routes]
    paths = [Path(path, endpoint(service, route, routes), methods=["POST"]) for route in routes for path in route.paths]
    app = Starlette(
        routes=[*paths, *operations(service, routes), *documents(service, routes)],
        exception_handlers={
            HTTPException: _http_error,
            PoolingError: _pooling_error,
            ClientDisconnect: _gone,
            Exception: _unexpected,
        },
    )
    return Frame(app, service)


def endpoint(service: Service, route: Route, routes: Sequence[Route]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(http: Request) -> Response:
        http.scope["handler"] = route.paths[0]
        engine = service.engine
        if not route.offered(engine.about):
            raise not_offered(route, routes, engine.about)
        check_media_type(http.headers.get("content-type"), http.headers.get("content-encoding"))
        raw = await read(http, service.settings.max_body_bytes)
        check_bytes(raw)
        body = parse(route.body, raw)
        call = Call(engine, service.settings, http.scope["request_id"])
        http.scope["call"] = call
        reply = await unless_gone(http.receive, route.handler(body, call))
        if reply is None:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return respond(reply, call.headers())

    return answer


async def read(http: Request, limit: int) -> bytes:
    """The whole body; one that is too long is refused before it is read, or as soon as that shows."""
    told = http.headers.get("content-length", "")
    if told.isdecimal() and int(told) > limit:
        raise too_large(limit, told)
    parts: list[bytes] = []
    size = 0
    async for part in http.stream():
        size += len(part)
        if size > limit:
            raise too_large(limit, "more")
        parts.append(part)
    return b"".join(parts)


def too_large(limit: int, got: str) -> BodyTooLarge:
    advice = "send several, or raise --max-body-bytes"
    return BodyTooLarge(f"a request has at most {limit} bytes, this one has {got}; {advice}")


async def unless_gone(receive: Receive, work: Awaitable[Reply]) -> Reply | None:
    """The reply; None when the client hangs up first, and then the work is dropped as well."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(receive())  # after the body, the only thing that comes is the end
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (task, gone):
            if not each.done():
                each.cancel()
                with suppress(asyncio.CancelledError, PoolingError):
                    await each
            elif not each.cancelled():
                each.exception()  # whoever asked is gone as well, and asyncio would complain that nobody looked


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


async def _gone(http: Request, error: Exception) -> Response:
    """The client hung up in the middle of its own request."""
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _unexpected(http: Request, error: Exception) -> Response:
    """A bug: the log has all of it, the client only what helps to find it there."""
    logger.error("request %s failed", http.scope["request_id"], exc_info=error)
    return respond(plain_error(500, f"something went wrong here; the log knows it as {http.scope['request_id']}"))
