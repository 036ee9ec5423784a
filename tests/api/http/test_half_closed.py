"""A client that ends its side of the connection after its requests gets its answers; one that is gone is noticed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvloop
from starlette.types import Receive, Scope, Send

from cenote.api.http.connection import HttpConnection
from cenote.api.http.server_state import ServerState

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
TIMEOUT_S = 10.0


class SlowApp:
    """Answers after a moment with the path; counts the requests that a disconnect ends."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.num_started = self.num_cancelled = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.num_started += 1
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] == "http.disconnect":
            return
        disconnected = asyncio.ensure_future(receive())
        done, _ = await asyncio.wait([disconnected], timeout=self.seconds)
        if done:
            self.num_cancelled += 1
            return
        disconnected.cancel()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode()})


def run_client(app: SlowApp, use: Callable[[socket.socket], Awaitable[None]], family: int = socket.AF_INET) -> None:
    async def run() -> None:
        loop, state = asyncio.get_running_loop(), ServerState(app)
        client, accepted = make_pair(family)
        accepted.setblocking(False)
        client.setblocking(False)
        await loop.connect_accepted_socket(lambda: HttpConnection(state), accepted)
        try:
            await asyncio.wait_for(use(client), TIMEOUT_S)
        finally:
            client.close()
        async with asyncio.timeout(TIMEOUT_S):
            while state.connections or state.tasks:
                await asyncio.sleep(0.01)

    for factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(run())


def make_pair(family: int) -> tuple[socket.socket, socket.socket]:
    if family != socket.AF_INET:
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        return client, listener.accept()[0]


async def read_all(client: socket.socket) -> bytes:
    received = b""
    while chunk := await asyncio.get_running_loop().sock_recv(client, 65536):
        received += chunk
    return received


@pytest.mark.parametrize("request_", [GET, b"GET / HTTP/1.0\r\n\r\n"], ids=["1.1", "1.0"])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX], ids=["tcp", "unix"])
def test_a_client_that_ends_its_side_gets_its_answer(request_: bytes, family: int) -> None:
    async def use(client: socket.socket) -> None:
        client.sendall(request_)
        client.shutdown(socket.SHUT_WR)
        reply = await read_all(client)

        assert reply.startswith(b"HTTP/1.1 200 OK\r\n") and reply.count(b"HTTP/1.1") == 1
        assert b"connection: close\r\n" in reply and reply.endswith(b"\r\n\r\n/")

    run_client(SlowApp(0.05), use, family)


def test_all_complete_requests_of_a_client_that_ends_its_side_are_answered_in_order() -> None:
    paths = [b"/%d" % number for number in range(40)]

    async def use(client: socket.socket) -> None:
        client.sendall(b"".join(GET.replace(b"/", path, 1) for path in paths) + b"POST /cut HTTP/1.1\r\nHo")
        client.shutdown(socket.SHUT_WR)
        reply = await read_all(client)

        assert [part.rpartition(b"\r\n\r\n")[2] for part in reply.split(b"HTTP/1.1 200 OK\r\n")[1:]] == paths
        assert b"/cut" not in reply

    run_client(SlowApp(0.002), use)


def test_a_client_that_ends_its_side_within_a_body_is_disconnected() -> None:
    async def use(client: socket.socket) -> None:
        client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello")
        client.shutdown(socket.SHUT_WR)

        assert await read_all(client) == b""

    run_client(SlowApp(0.01), use)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX], ids=["tcp", "unix"])
@pytest.mark.parametrize("request_", [GET, b"GET / HTTP/1.0\r\n\r\n"], ids=["1.1", "1.0"])
def test_a_client_that_closes_its_connection_is_noticed_and_its_request_cancelled(request_: bytes, family: int) -> None:
    app = SlowApp(TIMEOUT_S)

    async def use(client: socket.socket) -> None:
        num_before = app.num_started
        client.sendall(request_)
        while app.num_started == num_before:
            await asyncio.sleep(0.01)

    run_client(app, use, family)

    assert app.num_cancelled == 2  # one in each event loop


def test_a_client_that_resets_its_connection_later_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cenote.api.http.connection.PEER_CHECK_S", 0.05)
    app = SlowApp(TIMEOUT_S)

    async def use(client: socket.socket) -> None:
        client.sendall(GET)
        client.shutdown(socket.SHUT_WR)
        await asyncio.sleep(0.3)
        assert app.num_started > app.num_cancelled
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    run_client(app, use)

    assert app.num_cancelled == 2
