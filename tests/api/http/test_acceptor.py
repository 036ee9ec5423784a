"""Accepting connections when no descriptor is left, and when TLS handshakes are never made."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from cenote.api.http import acceptor as acceptor_module
from cenote.api.http import server as server_module
from cenote.api.http.acceptor import Acceptor
from cenote.api.http.server import HttpServer
from cenote.api.sockets import make_tls_context
from cenote.config.server import ServerConfig
from tests.serving.certificates import certificate, needs_openssl

from .memory_transport import echo

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
TIMEOUT_S = 20.0


@asynccontextmanager
async def serve(**options: Any) -> AsyncIterator[tuple[HttpServer, tuple[str, int], list[str]]]:
    """Serve an app; yields the server, its address, and the reasons for which connections were refused or closed."""
    server, reasons = HttpServer(echo, keep_alive_s=TIMEOUT_S, **options), list[str]()
    server.server_state.on_refused = lambda reason, message: reasons.append(reason)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await server.startup([listener])
        try:
            async with asyncio.timeout(TIMEOUT_S):
                yield server, listener.getsockname(), reasons
        finally:
            await server.shutdown([listener])


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    """Take all descriptors but the lowest free ones that a limit leaves."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def read(client: socket.socket) -> bytes:
    return await asyncio.get_running_loop().sock_recv(client, 65536)


def open_clients(count: int) -> list[socket.socket]:
    clients = [socket.socket() for _ in range(count)]
    for client in clients:
        client.setblocking(False)
    return clients


def test_without_a_descriptor_an_idle_connection_makes_room_for_a_new_one() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        async with serve() as (server, address, reasons):
            idle, new = open_clients(2)
            await loop.sock_connect(idle, address)
            while not server.server_state.connections:
                await asyncio.sleep(0.01)

            with no_descriptors_left():
                await loop.sock_connect(new, address)
                await loop.sock_sendall(new, GET)

                assert (await read(new)).startswith(b"HTTP/1.1 200 OK\r\n")
            assert await read(idle) == b"" and set(reasons) == {"descriptors"}
            for client in (idle, new):
                client.close()

    uvloop.run(run())


def test_without_a_descriptor_and_an_idle_connection_a_new_one_is_told_to_retry() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        async with serve() as (server, address, reasons):
            (new,) = open_clients(1)

            with no_descriptors_left():
                await loop.sock_connect(new, address)
                reply = await read(new)

            assert reply.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1\r\n" in reply
            assert b"limit of open files" in reply and reasons == ["descriptors"]
            assert not server.server_state.connections
            new.close()

    uvloop.run(run())


async def test_accept_is_retried_after_other_errors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acceptor_module, "ACCEPT_RETRY_S", 0.05)

    class FailingListener:
        """A listening socket whose first accept() fails."""

        def __init__(self, inner: socket.socket) -> None:
            self.inner, self.num_failures = inner, 1

        def fileno(self) -> int:
            return self.inner.fileno()

        def accept(self) -> Any:
            if self.num_failures:
                self.num_failures -= 1
                raise OSError(errno.ENOMEM, "Cannot allocate memory")
            return self.inner.accept()

    accepted = asyncio.get_running_loop().create_future()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        listener.setblocking(False)
        failing: Any = FailingListener(listener)
        acceptor = Acceptor(failing, accepted.set_result, lambda message: False)
        acceptor.start()
        (await asyncio.wait_for(accepted, TIMEOUT_S)).close()
        acceptor.stop()

    assert "accept() failed: Cannot allocate memory" in caplog.text


@needs_openssl
def test_connections_that_never_make_a_handshake_count_and_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "SLOW_HANDSHAKE_S", 0.2)
    cert, key = certificate(tmp_path, "server")
    tls = make_tls_context(ServerConfig(ssl_certfile=cert, ssl_keyfile=key))

    async def run() -> None:
        async with serve(tls_context=tls, max_connections=3) as (server, address, reasons):
            silent = [socket.create_connection(address) for _ in range(10)]
            while len(reasons) < 7:
                await asyncio.sleep(0.01)
            assert len(server.pending_connections) == 3

            await asyncio.sleep(0.2)
            context = ssl.create_default_context(cafile=cert)
            reader, writer = await asyncio.open_connection(*address, ssl=context, server_hostname="127.0.0.1")
            writer.write(GET)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            writer.close()
            for client in silent:
                client.close()

    uvloop.run(run())


@needs_openssl
def test_a_handshake_has_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HANDSHAKE_TIMEOUT_S", 0.2)
    cert, key = certificate(tmp_path, "server")
    tls = make_tls_context(ServerConfig(ssl_certfile=cert, ssl_keyfile=key))

    async def run() -> None:
        loop = asyncio.get_running_loop()
        async with serve(tls_context=tls) as (_, address, _):
            (silent,) = open_clients(1)
            await loop.sock_connect(silent, address)

            assert await read(silent) == b""
            silent.close()

    uvloop.run(run())
