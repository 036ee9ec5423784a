"""Async HTTP/1.1 client with keep-alive connections and low overhead per request."""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self, cast
from urllib.parse import unquote, urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from cenote.errors import BadRequest
from cenote.utils.http_client import HttpReply


class NoResponse(Exception):
    """The connection failed, was closed, or timed out before a response arrived."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Address a server listens on: host and port, or a Unix socket."""

    host: str
    port: int
    prefix: str = ""  # prepended to every path
    tls: bool = False
    uds: str | None = None

    @classmethod
    def from_url(cls, url: str, *, uds: str | None = None) -> ServerAddress:
        """Parse http://host:port/prefix, https://host, or unix:///path/of.sock."""
        parts = urlsplit(url)
        if parts.scheme == "unix" and parts.path:
            return cls("localhost", 80, uds=unquote(parts.path))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadRequest(
                f"invalid server URL {url!r}; expected for example http://127.0.0.1:8000 or unix:///a.sock"
            )
        if parts.username is not None:
            raise BadRequest("a server URL must not contain a user; pass --header 'Authorization=Basic ...' instead")
        try:
            port = parts.port
        except ValueError:
            raise BadRequest(f"invalid port in {url!r}; expected 0 to 65535") from None
        tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if tls else 80), parts.path.rstrip("/"), tls, uds)

    def path(self, endpoint: str) -> str:
        """Return the full path; a version at the end of the prefix is not repeated (/v1/v1)."""
        version = self.prefix.rpartition("/")[2]
        if version in ("v1", "v2") and endpoint.startswith(f"/{version}/"):
            endpoint = endpoint.removeprefix(f"/{version}")
        return self.prefix + endpoint

    def __str__(self) -> str:
        if self.uds is not None:
            return f"unix://{self.uds}{self.prefix}"
        return f"http{'s' if self.tls else ''}://{self.host}:{self.port}{self.prefix}"


def encode_http_request(
    method: str, address: ServerAddress, endpoint: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> bytes:
    """Return the bytes of an HTTP request: request line, headers and body."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    lines = {"Host": f"{host}:{address.port}", "User-Agent": "cenote-bench", "Accept": "application/json"}
    if body:
        lines |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    lines |= headers or {}
    for name, value in lines.items():
        if not (name + value).isprintable():
            raise BadRequest(
                f"header {name!r} contains a line break or another character that is not allowed in headers"
            )
    head = "\r\n".join([f"{method} {address.path(endpoint)} HTTP/1.1", *(f"{k}: {v}" for k, v in lines.items())])
    return head.encode() + b"\r\n\r\n" + body


class ClientConnection(asyncio.Protocol):
    """One connection with at most one request in flight."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        self.loop = loop
        self.timeout_s = timeout_s
        self.transport: asyncio.WriteTransport | None = None
        self.parser = HttpResponseParser(self)
        self.headers: dict[str, str] = {}
        self.parts: list[bytes] = []
        self.waiter: asyncio.Future[HttpReply] | None = None
        self.has_received_data = False  # whether any byte of the response was received
        self.has_head = False
        self.is_lost = False

    @property
    def is_open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def send(self, request: bytes, timeout_s: float) -> asyncio.Future[HttpReply]:
        assert self.transport is not None and self.waiter is None
        self.has_received_data = self.has_head = False
        waiter = self.waiter = self.loop.create_future()
        alarm = self.loop.call_later(timeout_s, self._expire)
        waiter.add_done_callback(lambda _: alarm.cancel())
        if self.is_open:
            self.transport.write(request)
        else:
            self._fail("connection closed before the response")
        return waiter

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _expire(self) -> None:
        self._fail(f"timed out after {self.timeout_s:g} s")

    def _fail(self, reason: str) -> None:
        waiter, self.waiter = self.waiter, None
        self.close()
        if waiter is not None and not waiter.done():
            waiter.set_exception(NoResponse(reason))

    # asyncio.Protocol callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(
            asyncio.WriteTransport, transport
        )  # uvloop's transports do not subclass asyncio.WriteTransport

    def data_received(self, data: bytes) -> None:
        self.has_received_data = True
        try:
            self.parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._fail(f"invalid HTTP/1.1 response: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        ends_by_closing = not self.headers.keys() & {"content-length", "transfer-encoding"}
        if self.has_head and ends_by_closing and error is None:
            self.on_message_complete()
        elif self.has_received_data:
            self._fail("connection closed during the response")
        else:
            self._fail("connection closed before the response")

    # HttpResponseParser callbacks

    def on_message_begin(self) -> None:
        self.headers, self.parts, self.has_head = {}, [], False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)

    def on_message_complete(self) -> None:
        status = self.parser.get_status_code()
        if status < 200:  # 1xx: the final response follows
            self.has_head = False
            return
        content = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        reply = HttpReply(status, self.headers, content, time.perf_counter())
        waiter, self.waiter, self.has_head = self.waiter, None, False
        if not self.parser.should_keep_alive() or waiter is None:  # an unsolicited response precedes a close
            self.close()
        if waiter is not None and not waiter.done():
            waiter.set_result(reply)


class AsyncHttpClient:
    """Sends encoded requests to one server, with one keep-alive connection per request in flight."""

    def __init__(self, address: ServerAddress, *, timeout_s: float = 60, tls: ssl.SSLContext | None = None) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self.tls = (tls or ssl.create_default_context()) if address.tls else None
        self.num_resent = 0
        self._loop = asyncio.get_running_loop()
        self._idle: list[ClientConnection] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        while self._idle:
            self._idle.pop().close()
        await asyncio.sleep(0)  # transports close in the next iteration of the loop

    async def send(self, request: bytes) -> HttpReply:
        """Send a request and return the response; raise NoResponse on failure."""
        began = time.perf_counter()
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_open:
                continue
            try:
                return await self._send_on(connection, request, self.timeout_s)
            except NoResponse:
                # the server may close an idle connection while the request is being sent: resend once on a new
                # connection, and count it in num_resent
                if connection.has_received_data or not connection.is_lost:
                    raise
                self.num_resent += 1
                break
        connection = await self._connect(began)
        return await self._send_on(connection, request, self._remaining_s(began))

    async def _send_on(self, connection: ClientConnection, request: bytes, timeout_s: float) -> HttpReply:
        try:
            reply = await connection.send(request, timeout_s)
        except asyncio.CancelledError:  # a late response must not be read as that of the next request
            connection.close()
            raise
        if connection.is_open:
            self._idle.append(connection)
        return reply

    async def _connect(self, began: float) -> ClientConnection:
        address = self.address
        connection = ClientConnection(self._loop, self.timeout_s)
        try:
            async with asyncio.timeout(self._remaining_s(began)):
                if address.uds is not None:
                    await self._loop.create_unix_connection(
                        lambda: connection,
                        address.uds,
                        ssl=self.tls,
                        server_hostname=address.host if self.tls else None,
                    )
                else:
                    await self._loop.create_connection(lambda: connection, address.host, address.port, ssl=self.tls)
        except TimeoutError:
            raise NoResponse(f"timed out after {self.timeout_s:g} s while connecting") from None
        except OSError as error:
            raise NoResponse(_connect_error(error)) from None
        return connection

    def _remaining_s(self, began: float) -> float:
        return max(0.0, began + self.timeout_s - time.perf_counter())


def _connect_error(error: OSError) -> str:
    """Return a message without addresses, so that identical errors can be counted."""
    if isinstance(error, ssl.SSLError):
        return f"TLS handshake failed: {getattr(error, 'verify_message', '') or error.reason or error}"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if error.errno is not None and error.errno in errno.errorcode:
        return f"cannot connect: {os.strerror(error.errno).lower()}"
    return f"cannot connect: {error.strerror or error}"
