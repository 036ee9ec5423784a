"""ASGI apps that send given messages."""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

START = {"type": "http.response.start", "status": 200, "headers": []}


def responds(*messages: dict[str, Any]) -> ASGIApp:
    """Return an app that sends these messages."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send({**message})

    return app


def start(*headers: tuple[bytes, bytes], status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": headers}


def body(content: bytes = b"", *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": content, "more_body": more}
