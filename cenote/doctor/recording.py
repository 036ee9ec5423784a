"""`cenote doctor --record`: forward requests to a server, and append them and the replies to a file."""

from __future__ import annotations

import base64
import json
import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from starlette.types import Receive, Scope, Send

from cenote.api.http.server import HttpServer
from cenote.api.sockets import open_socket
from cenote.config.server import ServerConfig
from cenote.utils.bounded_executor import BoundedExecutor
from cenote.utils.http_client import HttpClient, HttpReply, ServerUnreachable
from cenote.utils.progress import print_note

SECRET_HEADERS = frozenset(("authorization", "api-key", "x-api-key", "x-goog-api-key", "cookie", "proxy-authorization"))
SECRET_QUERY = re.compile(r"(?<=[?&])(key|api_key|token)=[^&]*")
KEPT_REPLY_HEADERS = ("content-type", "retry-after", "x-truncated-inputs", "x-model-fingerprint", "metadata")
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


class RecordingProxy(ForwardingProxy):
    """Append one JSON line for each request; API keys are left out."""

    def __init__(self, url: str, path: Path) -> None:
        super().__init__(url)
        # requests contain texts of users: nobody else may read the file
        self.descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.lock = threading.Lock()
        self.num_recorded = 0

    def exchange(self, request: ProxyRequest) -> HttpReply:
        start = time.perf_counter()
        reply = self.forward(request)
        record = make_record(request, reply, reply.received_at - start)
        line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
        with self.lock:
            os.write(self.descriptor, line)
            self.num_recorded += 1
        return reply

    def close(self) -> None:
        super().close()
        os.close(self.descriptor)


def make_record(request: ProxyRequest, reply: HttpReply, seconds: float) -> dict[str, Any]:
    return {
        "time": round(time.time(), 3),
        "seconds": round(seconds, 6),
        "method": request.method,
        "path": SECRET_QUERY.sub(r"\1=", request.path),
        "headers": {name: value for name, value in request.headers.items() if name not in SECRET_HEADERS},
        "request": encode_content(request.content, request.headers),
        "status": reply.status,
        "reply_headers": {name: reply.headers[name] for name in KEPT_REPLY_HEADERS if name in reply.headers},
        "reply": encode_content(reply.content, reply.headers),
    }


def encode_content(content: bytes, headers: Mapping[str, str]) -> dict[str, Any] | None:
    """Return a body as JSON, text or base64, whichever it is."""
    if not content:
        return None
    try:
        return {"json": json.loads(content)}
    except ValueError:
        pass
    try:
        return {"text": content.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def decode_content(body: dict[str, Any] | None) -> bytes | None:
    if body is None:
        return None
    if "json" in body:
        return json.dumps(body["json"]).encode()
    return base64.b64decode(body["base64"]) if "base64" in body else str(body["text"]).encode()


def record(url: str, path: Path, port: int) -> int:
    """Serve until Ctrl-C; only this machine can connect."""
    proxy = RecordingProxy(url, path)
    listener = open_socket(ServerConfig(host="127.0.0.1", port=port))
    try:
        HttpServer(proxy, keep_alive_s=75.0).run([listener])
    except KeyboardInterrupt:
        pass
    finally:
        proxy.close()
    print_note(f"{proxy.num_recorded} requests are recorded in {path}")
    return 0
