"""A connection without sockets: bytes go in piece by piece, what the server writes is kept."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from cenote.api.http.connection import HttpConnection
from cenote.api.http.server_state import ServerState

# differ between two runs of the same requests
VARYING_HEADERS = re.compile(rb"(date|x-request-id): [^\r]*\r\n")


class MemoryTransport:
    def __init__(self) -> None:
        self.written = b""
        self.late = b""  # written after the end of the stream
        self.is_closed = self.has_ended = self.is_paused = False

    def get_extra_info(self, name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return self.is_closed

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: bytes) -> None:
        if self.has_ended:
            self.late += data
        elif not self.is_closed:
            self.written += data

    def writelines(self, data: Iterable[bytes]) -> None:
        self.write(b"".join(data))

    def write_eof(self) -> None:
        self.has_ended = True

    def close(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    def resume_reading(self) -> None:
        assert self.is_paused
        self.is_paused = False


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with what a request consists of, once its body is complete."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message["body"]
        if not message["more_body"]:
            break
    headers = [f"{name.decode('latin-1')}: {value.decode('latin-1')}" for name, value in scope["headers"]]
    target = [scope["method"], scope["path"], scope["query_string"].decode("latin-1")]
    content = json.dumps([*target, headers, len(body), hashlib.sha256(body).hexdigest()]).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": content})


def exchange_bytes(pieces: Iterable[bytes], app: ASGIApp = echo) -> tuple[bytes, bool]:
    """Send the pieces on one connection; return the responses, and whether the server ended the connection."""
    transport = MemoryTransport()

    async def run() -> None:
        state = ServerState(app)
        connection = HttpConnection(state)
        connection.connection_made(transport)  # type: ignore[arg-type]
        for piece in pieces:
            while transport.is_paused and not transport.is_closed:
                await asyncio.sleep(0)
            if transport.is_closed:
                break
            connection.data_received(piece)
            await asyncio.sleep(0)
        for _ in range(200):  # pipelined requests run one after the other
            await asyncio.sleep(0)
        connection.connection_lost(None)
        while state.tasks:
            await asyncio.sleep(0)
        assert not state.connections

    asyncio.run(run())
    assert not transport.late
    return VARYING_HEADERS.sub(b"", transport.written), transport.is_closed or transport.has_ended


def list_statuses(responses: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", responses)]
