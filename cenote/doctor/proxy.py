"""ASGI app that forwards every request to another server."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from starlette.types import Receive, Scope, Send

from cenote.utils.bounded_executor import BoundedExecutor
from cenote.utils.http_client import HttpClient, HttpReply, ServerUnreachable

# of one connection, and not of the message; lengths are computed again
CONNECTION_HEADERS = frozenset(
    ("connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "host", "content-length", "date")
)

MAX_EXCHANGES = 64  # at the same time; further requests wait


@dataclass(frozen=True)
class ProxyRequest:
    method: str
    path: str  # with the query string
    headers: Mapping[str, str]
    content: bytes


class ForwardingProxy:
    def __init__(self, url: str) -> None:
        self.url = url
        self.idle_clients: SimpleQueue[HttpClient] = SimpleQueue()
        self.executor = BoundedExecutor("proxy", num_threads=MAX_EXCHANGES, max_waiting=0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        query = scope["query_string"].decode("latin-1")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        request = ProxyRequest(
            scope["method"],
            scope["raw_path"].decode("latin-1").partition("?")[0] + (f"?{query}" if query else ""),
            {name: value for name, value in headers.items() if name not in CONNECTION_HEADERS},
            await read_body(receive),
        )
        reply = await self.executor.run_admitted(self.exchange, request)
        passed = [(name, value) for name, value in reply.headers.items() if name not in CONNECTION_HEADERS]
        lines = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in passed]
        lines.append((b"content-length", str(len(reply.content)).encode()))
        await send({"type": "http.response.start", "status": reply.status, "headers": lines})
        await send({"type": "http.response.body", "body": reply.content})

    def exchange(self, request: ProxyRequest) -> HttpReply:
        """Return the reply of the server; runs in a thread."""
        return self.forward(request)

    def forward(self, request: ProxyRequest) -> HttpReply:
        try:
            client = self.idle_clients.get_nowait()
        except Empty:
            client = HttpClient(self.url)
        try:
            content = request.content if request.content or request.method == "POST" else None
            return client.send(request.method, request.path, content, request.headers)
        except ServerUnreachable as error:
            body = json.dumps({"error": {"message": error.message, "type": "BadGateway"}}).encode()
            return HttpReply(502, {"content-type": "application/json"}, body, time.perf_counter())
        finally:
            self.idle_clients.put(client)

    def close(self) -> None:
        self.executor.close()
        while not self.idle_clients.empty():
            self.idle_clients.get().close()


async def read_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b"".join(parts)
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)
