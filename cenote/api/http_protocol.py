"""HTTP/1.1 connection: limits and timeouts for request headers and bodies, enforced before the ASGI app runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, Literal
from uuid import uuid4

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from cenote.api.log_config import log_reply
from cenote.api.replies import status_error_reply

MAX_URL_BYTES = 8 * 1024
MAX_HEADER_BYTES = 32 * 1024
MAX_HEADERS = 100
HEADERS_TIMEOUT_S = 10.0  # from the first byte of the headers to the last
BODY_RATE_WINDOW_S = 10.0
MIN_BODY_RATE = 1024  # bytes per second, averaged over each window
# seconds to keep reading after an error response: closing at once could discard it before the client reads it
LINGER_TIMEOUT_S = 2.0
# seconds to wait at shutdown for the first request of a new connection: it may already be in transit
FIRST_REQUEST_GRACE_S = 1.0
HOST_PATTERN = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[\w.%~-]*)(:\d{1,5})?")
UPGRADE_HEADERS = (b"connection", b"upgrade", b"http2-settings")


class ProtocolError(Exception):
    """Stop parsing a request and send an error response with this status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class HttpConnection(HttpToolsProtocol):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.phase: Literal["new", "idle", "headers", "body", "rejected"] = "new"
        self.received_header_bytes = self.num_headers = self.parsed_header_bytes = 0  # of the current request
        self.window_bytes = 0  # of its body, in the current rate window
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_timer(self.timeout_keep_alive, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_timer(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.phase == "rejected":
            return
        self._unset_keepalive_if_required()
        in_body = self.phase == "body"
        self.window_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            headers = self._strip_upgrade()
            self.parser = httptools.HttpRequestParser(self)
            self.data_received(headers + data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._send_error(cause if isinstance(cause, ProtocolError) else ProtocolError(400, "invalid HTTP request"))
        if self.phase == "headers" and not in_body:
            self.received_header_bytes += len(data)
            if self.received_header_bytes > MAX_HEADER_BYTES:
                self._send_error(headers_too_large_error())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.phase = "headers"
        self.received_header_bytes = self.num_headers = self.parsed_header_bytes = 0
        self._set_timer(
            HEADERS_TIMEOUT_S,
            lambda: self._send_error(
                ProtocolError(408, f"request headers not received within {HEADERS_TIMEOUT_S:g} s")
            ),
        )

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            raise ProtocolError(414, f"URL too long: limit {MAX_URL_BYTES} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self.num_headers += 1
        self.parsed_header_bytes += len(name) + len(value) + 4
        if self.num_headers > MAX_HEADERS or self.parsed_header_bytes > MAX_HEADER_BYTES:
            raise headers_too_large_error()

    def on_headers_complete(self) -> None:
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            raise ProtocolError(400, f"expected one Host header, got {len(hosts)}")
        if hosts and not HOST_PATTERN.fullmatch(hosts[0]):
            raise ProtocolError(400, "invalid Host header; expected HOST or HOST:PORT")
        if self.parser.get_method() == b"CONNECT":
            raise ProtocolError(400, "method CONNECT is not supported: this server is not a proxy")
        if self.parser.should_upgrade():
            return
        super().on_headers_complete()
        self.cycle.transport = CoalescingTransport(self.cycle)  # type: ignore[assignment]  # implements what a response uses
        self.phase, self.window_bytes = "body", 0
        self._set_timer(BODY_RATE_WINDOW_S, self._check_body_rate)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self.phase = "idle"
        # if the response was sent before the whole body arrived, uvicorn has not started its keep-alive timer
        is_idle = self.cycle.response_complete and not self.transport.is_closing()
        self._set_timer(self.timeout_keep_alive if is_idle else None, self.transport.close)

    def shutdown(self) -> None:
        """Accept no new request, but finish those being received or processed."""
        if self.phase == "new":
            self._set_timer(FIRST_REQUEST_GRACE_S, self.transport.close)
        elif self.phase == "idle":
            super().shutdown()

    def _strip_upgrade(self) -> bytes:
        """Return the request headers without the protocol upgrade: the parser would drop the body after it."""
        request_line = b"%s %s HTTP/%s\r\n" % (
            self.parser.get_method(),
            self.url,
            self.parser.get_http_version().encode(),
        )
        header_lines = [b"%s: %s\r\n" % pair for pair in self.headers if pair[0] not in UPGRADE_HEADERS]
        return b"".join([request_line, *header_lines, b"\r\n"])

    def _check_body_rate(self) -> None:
        if self.window_bytes < MIN_BODY_RATE * BODY_RATE_WINDOW_S and not self.flow.read_paused:
            self._send_error(ProtocolError(408, f"request body received at less than {MIN_BODY_RATE} bytes per second"))
            return
        self.window_bytes = 0
        self._set_timer(BODY_RATE_WINDOW_S, self._check_body_rate)

    def _set_timer(self, seconds: float | None, callback: Callable[[], None] = lambda: None) -> None:
        """Call `callback` after so many seconds, replacing the previous timer; None only cancels it."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = None if seconds is None else self.loop.call_later(seconds, callback)

    def _send_error(self, error: ProtocolError) -> None:
        """Send an error response without running the app, and close the connection."""
        if self.phase == "rejected" or self.transport.is_closing():
            return
        cycle, in_body = self.cycle, self.phase == "body"
        can_respond = cycle is None or (not cycle.response_started if in_body else cycle.response_complete)
        if in_body:
            cycle.disconnected = True
            cycle.message_event.set()
        self.phase = "rejected"
        if self.pipeline or not can_respond:  # another response is in progress
            self.transport.close()
            return
        reply, request_id = status_error_reply(error.status, str(error)), uuid4().hex
        headers = {"content-type": reply.media_type, "content-length": str(len(reply.content)), **reply.headers}
        headers |= {"x-request-id": request_id, "connection": "close"}
        header_lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(STATUS_LINE[error.status] + header_lines.encode() + b"\r\n" + reply.content)
        scope = {"path": "", "raw_path": b"-", "method": "-", "client": self.client}
        log_reply({**scope, "request_id": request_id}, error.status, 0.0)
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._set_timer(LINGER_TIMEOUT_S, self.transport.close)
        else:
            self.transport.close()


class CoalescingTransport:
    """Transport of one response that sends headers and body in one write, so that the client wakes up once."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self.cycle = cycle
        self.transport = cycle.transport
        self.pending_headers: bytes | None = None
        self.has_started = False

    def write(self, data: bytes) -> None:
        cycle = self.cycle
        if self.pending_headers is not None:
            self.transport.writelines([self.pending_headers, data])
            self.pending_headers = None
        elif cycle.response_started and not self.has_started:
            self.has_started = True
            if cycle.expected_content_length and cycle.scope["method"] != "HEAD":
                self.pending_headers = data
            else:
                self.transport.write(data)
        else:
            self.transport.write(data)

    def close(self) -> None:
        if self.pending_headers is not None:
            self.transport.write(self.pending_headers)
        self.transport.close()

    def is_closing(self) -> bool:
        return self.transport.is_closing()


def headers_too_large_error() -> ProtocolError:
    return ProtocolError(431, f"request headers too large: limits {MAX_HEADERS} headers, {MAX_HEADER_BYTES} bytes")
