"""HTTP server for tests with a configurable handler that records its requests."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class ReceivedRequest:
    """One recorded request."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    connection: int
    at: float = field(default_factory=time.perf_counter)


Handler = Callable[[ReceivedRequest], Awaitable[bytes]]  # returns the bytes of the response; b"" closes the connection


class StubServer:
    """Server in its own thread; /models has a fixed response, `handler` handles all other requests."""

    def __init__(
        self, handler: Handler, *, port: int = 0, uds: str | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.handler = handler
        self.port = port
        self.uds = uds
        self.tls = tls
        self.requests: list[ReceivedRequest] = []
        self.num_connections = 0
        self.max_in_flight = 0
        self._in_flight = 0
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> StubServer:
        self._thread.start()
        self.server = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        self.port = 0 if self.uds else self.server.sockets[0].getsockname()[1]
        self.url = f"unix://{self.uds}" if self.uds else f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def post_requests(self) -> list[ReceivedRequest]:
        return [request for request in self.requests if request.method == "POST"]

    async def _start(self) -> asyncio.Server:
        if self.uds:
            return await asyncio.start_unix_server(self._connected, self.uds, ssl=self.tls)
        return await asyncio.start_server(self._connected, "127.0.0.1", self.port, ssl=self.tls, limit=2**24)

    async def _stop(self) -> None:
        self.server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.num_connections += 1
        number = self.num_connections
        try:
            while (request := await self._read(reader, number)) is not None:
                self.requests.append(request)
                is_models = request.path.endswith("/models")
                self._in_flight += 1
                self.max_in_flight = max(self.max_in_flight, self._in_flight)
                try:
                    raw = reply(MODELS) if is_models else await self.handler(request)
                finally:
                    self._in_flight -= 1
                writer.write(raw)
                await writer.drain()
                if not raw or b"\r\nConnection: close\r\n" in raw:
                    return
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, number: int) -> ReceivedRequest | None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = first.split()
        return ReceivedRequest(method, path, headers, json.loads(raw) if raw else None, number)


MODELS = {"object": "list", "data": [{"id": "stub-model", "root": "somewhere"}, {"id": "other"}]}


def reply(body: Any, status: int = 200, headers: str = "") -> bytes:
    """Return the bytes of a response; `headers` are complete lines."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status} Status\r\n{headers}Content-Length: {len(raw)}\r\n\r\n".encode() + raw


def vector(text: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Return a vector that depends on the text."""
    return np.array([len(text), ord(text[0]), text.count("e") + 1], dtype=np.float32)


async def embed(request: ReceivedRequest) -> bytes:
    """Return a valid embeddings response; every text has 7 tokens."""
    texts = request.body["input"]
    is_base64 = request.body.get("encoding_format") == "base64"
    vectors = [vector(text) for text in texts]
    data = [
        {"index": at, "embedding": base64.b64encode(v.tobytes()).decode() if is_base64 else v.tolist()}
        for at, v in enumerate(vectors)
    ]
    tokens = 7 * len(texts)
    return reply({"data": data, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})
