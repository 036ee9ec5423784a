"""A client of raw bytes, and a server for one connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import ASGIApp

from cenote import LLM
from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.api.http.connection import HttpConnection
from cenote.api.http.server_state import ServerState
from cenote.config.server import ServerConfig


class RawClient:
    """A client that sends raw bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self) -> tuple[int, dict[str, str], Any]:
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)).decode()
        first, *lines = head.strip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(first.split()[1]), headers, json.loads(body) if body else None

    async def is_closed(self) -> bool:
        return await asyncio.wait_for(self.reader.read(), 10) == b""


@asynccontextmanager
async def connect_to_model(llm: LLM, **settings: Any) -> AsyncIterator[RawClient]:
    """Start a server of a model, and yield a client that is connected to it."""
    app_state = AppState(ServerConfig(**settings))
    app_state.set_engine(llm.engine)
    async with connect_to_app(build_app(app_state), app_state.settings.keep_alive_s) as client:
        yield client


@asynccontextmanager
async def connect_to_app(app: ASGIApp, keep_alive_s: float = 5.0) -> AsyncIterator[RawClient]:
    """Serve an app, and yield a client that is connected to it."""
    state = ServerState(app, keep_alive_s)
    server = await asyncio.get_running_loop().create_server(lambda: HttpConnection(state), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()
        server.close()
        while state.connections or state.tasks:
            await asyncio.sleep(0.01)
