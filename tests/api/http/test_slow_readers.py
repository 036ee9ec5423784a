"""Clients that do not read their response are disconnected; connections above the limit are refused."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from starlette.types import Receive, Scope, Send

from cenote.api.http import flow_control
from cenote.api.http.connection import HttpConnection
from cenote.api.http.server_state import ServerState

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
LARGE = 30_000_000


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def serve(state: ServerState) -> AsyncIterator[tuple[str, int]]:
    server = await asyncio.get_running_loop().create_server(lambda: HttpConnection(state), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()
    finally:
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()
        while state.connections or state.tasks:
            await asyncio.sleep(0.01)


class LargeApp:
    """Sends a large response; counts the requests whose `send` has not returned."""

    def __init__(self) -> None:
        self.num_sending = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.num_sending += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": bytes(LARGE)})
        finally:
            self.num_sending -= 1


async def test_a_client_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_control, "WRITE_RATE_WINDOW_S", 0.3)
    app = LargeApp()
    state = ServerState(app)

    async with serve(state) as address:
        client = socket.create_connection(address)
        client.sendall(REQUEST)
        while not app.num_sending:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert app.num_sending == len(state.connections) == 1  # counted until the response is sent
        async with asyncio.timeout(10):
            while state.connections or app.num_sending:
                await asyncio.sleep(0.01)
        client.close()


async def test_a_client_that_reads_steadily_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_control, "WRITE_RATE_WINDOW_S", 0.2)
    app = LargeApp()
    state = ServerState(app)

    async with serve(state) as address:
        reader, writer = await asyncio.open_connection(*address, limit=65536)
        writer.write(REQUEST)
        await reader.readuntil(b"\r\n\r\n")
        size = 0
        while size < LARGE:
            size += len(await reader.read(1_000_000))
            if size % 8 == 0:
                await asyncio.sleep(0.01)
        writer.close()

    assert size == LARGE


async def test_a_connection_that_has_never_sent_a_request_is_closed_before_one_that_waits_for_its_next() -> None:
    async with serve(ServerState(answer, max_connections=3)) as address:
        used, silent, later = [await asyncio.open_connection(*address) for _ in range(3)]
        used[1].write(REQUEST)
        await used[0].readuntil(b"\r\n\r\nok")

        new = await asyncio.open_connection(*address)

        assert await asyncio.wait_for(silent[0].read(), 10) == b""
        for reader, writer in (used, later, new):
            writer.write(REQUEST)
            assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200 ")
            writer.close()
        silent[1].close()


async def test_a_connection_above_the_limit_replaces_one_that_sends_its_headers_slowly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cenote.api.http.connection.SLOW_HEADERS_S", 0.05)

    async with serve(ServerState(answer, max_connections=2)) as address:
        used, slow = [await asyncio.open_connection(*address) for _ in range(2)]
        used[1].write(REQUEST)
        await used[0].readuntil(b"\r\n\r\nok")
        slow[1].write(REQUEST[:-4])
        await asyncio.sleep(0.2)
        slow[1].write(REQUEST[-4:-2])

        new = await asyncio.open_connection(*address)
        new[1].write(REQUEST)
        assert (await asyncio.wait_for(new[0].readuntil(b"\r\n\r\nok"), 10)).startswith(b"HTTP/1.1 200 ")

        with suppress(ConnectionError):
            assert await asyncio.wait_for(slow[0].read(), 10) == b""
        used[1].write(REQUEST)
        assert (await used[0].readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200 ")
        for _, writer in (used, slow, new):
            writer.close()


async def test_connections_above_the_limit_replace_idle_ones_or_are_refused() -> None:
    release: asyncio.Event

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    refused: list[str] = []
    state = ServerState(app, max_connections=2, on_refused=lambda _, message: refused.append(message))

    release = asyncio.Event()
    async with serve(state) as address:
        clients = [await asyncio.open_connection(*address) for _ in range(2)]
        clients[0][1].write(REQUEST)
        while not state.tasks:
            await asyncio.sleep(0.01)
        clients.append(await asyncio.open_connection(*address))
        assert await asyncio.wait_for(clients[1][0].read(), 10) == b""  # was idle
        clients[2][1].write(REQUEST)
        while len(state.tasks) < 2:
            await asyncio.sleep(0.01)
        clients.append(await asyncio.open_connection(*address))
        reply = await asyncio.wait_for(clients[3][0].read(), 10)
        assert reply.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1\r\n" in reply
        assert b"too many connections: limit 2" in reply and len(refused) == 1
        release.set()
        for reader, _ in (clients[0], clients[2]):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        for _, writer in clients:
            writer.close()
