"""The ASGI side of a connection: bodies, disconnects, flow control and pipelining, with small apps."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from cenote.api.http import connection as connection_module
from cenote.api.http.connection import MAX_PIPELINED, HttpConnection
from cenote.api.http.request_cycle import MAX_BUFFERED_BODY
from cenote.api.http.server_state import ServerState

from .memory_transport import MemoryTransport, echo, exchange_bytes, list_statuses
from .raw_client import connect_to_app
from .small_apps import START, body, responds, start

GET = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"


async def test_the_body_is_expected_with_100_continue() -> None:
    async with connect_to_app(echo) as client:
        request = POST.replace(b"Host", b"Expect: 100-continue\r\nHost")
        await client.send(request[:-5])
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"hello")
        assert (await client.reply())[0] == 200
        await client.send(request)  # a client that does not wait needs no 100
        assert (await client.reply())[0] == 200


async def test_without_100_continue_the_connection_is_not_reused() -> None:
    """The client may send the body or not, so that the next request cannot be told from the body."""

    async with connect_to_app(responds(START, body())) as client:
        await client.send(POST.replace(b"Host", b"Expect: 100-continue\r\nHost")[:-5])
        status, headers, _ = await client.reply()
        assert (status, headers["connection"]) == (200, "close")
        await client.send(b"hello" + GET)
        assert await client.is_closed()


def test_a_body_that_did_not_wait_for_100_continue_keeps_the_connection() -> None:
    request = POST.replace(b"Host", b"Expect: 100-continue\r\nHost")

    responses, is_closed = exchange_bytes([request + GET], responds(START, body()))

    assert list_statuses(responses) == [200, 200] and not is_closed


async def test_few_of_many_pipelined_requests_are_parsed_before_they_are_answered() -> None:
    connection: HttpConnection | None = None
    num_requests, num_waiting = 5000, list[int]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert connection is not None
        num_waiting.append(len(connection.pipeline))
        await echo(scope, receive, send)

    transport, connection = MemoryTransport(), HttpConnection(ServerState(app))
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.data_received(GET * num_requests)
    assert transport.is_paused
    while connection.active is not None:
        await asyncio.sleep(0)
    connection.connection_lost(None)

    assert max(num_waiting) == MAX_PIPELINED
    assert list_statuses(transport.written) == [200] * num_requests


async def test_a_disconnect_while_the_app_works() -> None:
    messages: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        messages.append(await receive())
        messages.append(await receive())
        await send(START)
        await send(body(b"x"))  # is dropped
        messages.append(await receive())

    async with connect_to_app(app) as client:
        await client.send(POST)
        while not messages:
            await asyncio.sleep(0.01)
        client.writer.close()
        while len(messages) < 3:
            await asyncio.sleep(0.01)

    assert messages == [
        {"type": "http.request", "body": b"hello", "more_body": False},
        {"type": "http.disconnect"},
        {"type": "http.disconnect"},
    ]


async def test_a_disconnect_within_the_body_and_a_cancelled_receive() -> None:
    messages: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.ensure_future(receive()), 0.05)
        messages.append(await receive())
        messages.append(await receive())

    async with connect_to_app(app) as client:
        await client.send(POST[:-5])
        await asyncio.sleep(0.2)
        await client.send(b"he")
        while not messages:
            await asyncio.sleep(0.01)
        client.writer.close()
        while len(messages) < 2:
            await asyncio.sleep(0.01)

    assert messages == [{"type": "http.request", "body": b"he", "more_body": True}, {"type": "http.disconnect"}]


async def test_reading_pauses_while_the_app_does_not_read() -> None:
    content = bytes(range(256)) * 80_000
    buffered: list[int] = []
    digest = hashlib.sha256()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        more_body = True
        while more_body:
            await asyncio.sleep(0.3 if not buffered else 0)
            message = await receive()
            buffered.append(len(message["body"]))
            digest.update(message["body"])
            more_body = message["more_body"]
        await send(START)
        await send(body())

    async with connect_to_app(app) as client:
        await client.send(POST[:-5].replace(b"5", b"%d" % len(content), 1) + content)
        assert (await client.reply())[0] == 200

    assert digest.digest() == hashlib.sha256(content).digest()
    assert max(buffered) < 4 * MAX_BUFFERED_BODY + 256 * 1024 < len(content) / 10


async def test_writing_pauses_while_the_client_does_not_read() -> None:
    num_sent = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal num_sent
        await send(start((b"content-length", b"%d" % (64 * 2**20))))
        for num_sent in range(1, 65):
            await send(body(b"x" * 2**20, more=num_sent < 64))

    async with connect_to_app(app) as client:
        client.writer.transport.pause_reading()
        await client.send(GET)
        await asyncio.sleep(0.5)
        assert 0 < num_sent < 32, "the app waits for the client"
        client.writer.transport.resume_reading()
        await client.reader.readuntil(b"\r\n\r\n")
        assert await client.reader.readexactly(64 * 2**20) == b"x" * 64 * 2**20


def test_endless_trailers_are_refused() -> None:
    head = b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"

    for endless in (b"0\r\nX: ", b"5;"):
        responses, is_closed = exchange_bytes([head + b"3\r\nabc\r\n" + endless, *[b"x" * 10_000] * 10])
        assert list_statuses(responses) == [431] and is_closed


async def test_many_small_requests_in_one_read_do_not_count_as_large_headers() -> None:
    data = GET * 2000

    async with connect_to_app(echo) as client:
        await client.send(data + GET[:10])
        for _ in range(2000):
            assert (await client.reply())[0] == 200
        await client.send(GET[10:])
        assert (await client.reply())[0] == 200


async def test_a_slow_response_is_not_lost_when_the_next_request_is_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "HEADERS_TIMEOUT_S", 0.05)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0.3)
        await echo(scope, receive, send)

    async with connect_to_app(app) as client:
        await client.send(GET + GET[:10])
        assert (await client.reply())[0] == 200
        assert (await client.reply())[0] == 408
        assert await client.is_closed()


@pytest.mark.parametrize("cut", [len(POST), 10, len(POST) - 2])
async def test_shutdown_finishes_the_request_in_progress(cut: int) -> None:
    """The connection closes after the response, also if the request was still being received."""
    connections: list[Any] = []
    make: Callable[..., None] = connection_module.HttpConnection.connection_made

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0.1)
        await echo(scope, receive, send)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            connection_module.HttpConnection,
            "connection_made",
            lambda self, transport: (connections.append(self), make(self, transport))[1],
        )
        async with connect_to_app(app) as client:
            await client.send(POST[:cut])
            await asyncio.sleep(0.05)
            connections[0].shutdown()
            await client.send(POST[cut:])
            status, headers, _ = await client.reply()
            assert (status, headers["connection"]) == (200, "close")
            assert await client.is_closed()
