"""Call an ASGI app in this process with a request that has been read completely; adapt one to Ray Serve."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

Headers = tuple[tuple[bytes, bytes], ...]


class HttpRequest(NamedTuple):
    """An HTTP request as it is sent to a replica."""

    method: str
    path: str
    query: bytes = b""
    headers: Headers = ()
    body: bytes = b""


class HttpResponse(NamedTuple):
    status: int
    headers: Headers
    body: bytes


async def call_app(app: ASGIApp, request: HttpRequest) -> HttpResponse:
    """Return the response; cancelling the call cancels the request."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": request.path.encode(),
        "query_string": request.query,
        "root_path": "",
        "headers": list(request.headers),
        "client": None,
        "server": None,
    }
    bodies: Iterable[bytes] = iter((request.body,))
    status, parts = 500, []
    headers: Headers = ()

    async def receive() -> Message:
        for body in bodies:
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.Event().wait()  # this client never disconnects
        raise AssertionError("unreachable")

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = (
                message["status"],
                tuple((bytes(name), bytes(value)) for name, value in message["headers"]),
            )
        else:
            parts.append(bytes(message.get("body", b"")))

    await app(scope, receive, send)
    return HttpResponse(status, headers, b"".join(parts))


def without_request_id(app: ASGIApp) -> ASGIApp:
    """Return the app without its header `x-request-id`: the proxy of Ray Serve adds the same one."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_others(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [item for item in message["headers"] if item[0] != b"x-request-id"]
            await send(message)

        await app(scope, receive, send_others)

    return call
