"""One connection: limits and deadlines below the app, which never sees a request whose head does not end."""

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
HEADERS_TIMEOUT_S = 10.0  # from its first byte to its last
BODY_RATE_WINDOW_S = 10.0
MIN_BODY_RATE = 1024  # bytes per second, over each window
LINGER_TIMEOUT_S = 2.0  # how long a refused client may go on talking: hanging up at once could destroy the reply
FIRST_REQUEST_GRACE_S = (
    1.0  # a client that has connected but not spoken when the server stops has its request on the way
)
HOST_PATTERN = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[\w.%~-]*)(:\d{1,5})?")
UPGRADE_HEADERS = (b"connection", b"upgrade", b"http2-settings")


class ProtocolError(Exception):
    """Ends the parsing of a request; the reply says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class HttpConnection(HttpToolsProtocol):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.phase: Literal["silent", "idle", "head", "body", "refused"] = "silent"
        self.received_header_bytes = self.num_headers = self.parsed_header_bytes = 0  # of the request being read
        self.window_bytes = 0  # of its body, since the last look
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_timer(self.timeout_keep_alive, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_timer(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.phase == "refused":
            return
        self._unset_keepalive_if_required()
        in_body = self.phase == "body"
        self.window_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            head = self._strip_upgrade()
            self.parser = httptools.HttpRequestParser(self)
            self.data_received(head + data[offer.args[0] :])
        except httptools.HttpParserError as error:
            why = error.__context__
            self._send_error(
                why if isinstance(why, ProtocolError) else ProtocolError(400, "this is not a valid HTTP request")
            )
        if self.phase == "head" and not in_body:
            self.received_header_bytes += len(data)
            if self.received_header_bytes > MAX_HEADER_BYTES:
                self._send_error(headers_too_large_error())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.phase = "head"
        self.received_header_bytes = self.num_headers = self.parsed_header_bytes = 0
        self._set_timer(
            HEADERS_TIMEOUT_S,
            lambda: self._send_error(ProtocolError(408, f"the head did not end within {HEADERS_TIMEOUT_S:g} s")),
        )

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            raise ProtocolError(414, f"a URL has at most {MAX_URL_BYTES} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self.num_headers += 1
        self.parsed_header_bytes += len(name) + len(value) + 4
        if self.num_headers > MAX_HEADERS or self.parsed_header_bytes > MAX_HEADER_BYTES:
            raise headers_too_large_error()

    def on_headers_complete(self) -> None:
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            raise ProtocolError(400, f"a request has one Host header, this one has {len(hosts)}")
        if hosts and not HOST_PATTERN.fullmatch(hosts[0]):
            raise ProtocolError(400, "the Host header is no host and port")
        if self.parser.get_method() == b"CONNECT":
            raise ProtocolError(400, "this is no proxy")
        if self.parser.should_upgrade():
            return
        super().on_headers_complete()
        self.cycle.transport = CoalescingTransport(self.cycle)  # type: ignore[assignment]  # as much of one as a reply needs
        self.phase, self.window_bytes = "body", 0
        self._set_timer(BODY_RATE_WINDOW_S, self._check_body_rate)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self.phase = "idle"
        # one that was answered before all of it had come waits for the next, which uvicorn has stopped expecting
        waits = self.cycle.response_complete and not self.transport.is_closing()
        self._set_timer(self.timeout_keep_alive if waits else None, self.transport.close)

    def shutdown(self) -> None:
        """The server stops: no new request, but those that are being sent are answered."""
        if self.phase == "silent":
            self._set_timer(FIRST_REQUEST_GRACE_S, self.transport.close)
        elif self.phase == "idle":
            super().shutdown()

    def _strip_upgrade(self) -> bytes:
        """The same head without its offer to speak another protocol: the parser would drop the body behind it."""
        first = b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        kept = [b"%s: %s\r\n" % pair for pair in self.headers if pair[0] not in UPGRADE_HEADERS]
        return b"".join([first, *kept, b"\r\n"])

    def _check_body_rate(self) -> None:
        if self.window_bytes < MIN_BODY_RATE * BODY_RATE_WINDOW_S and not self.flow.read_paused:
            self._send_error(ProtocolError(408, f"the body came at less than {MIN_BODY_RATE} bytes per second"))
            return
        self.window_bytes = 0
        self._set_timer(BODY_RATE_WINDOW_S, self._check_body_rate)

    def _set_timer(self, seconds: float | None, callback: Callable[[], None] = lambda: None) -> None:
        """What happens if nothing else does; replaces what was to happen before."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = None if seconds is None else self.loop.call_later(seconds, callback)

    def _send_error(self, error: ProtocolError) -> None:
        """Answer here what the app never gets to see, and hang up."""
        if self.phase == "refused" or self.transport.is_closing():
            return
        cycle, in_body = self.cycle, self.phase == "body"
        may_speak = cycle is None or (not cycle.response_started if in_body else cycle.response_complete)
        if in_body:
            cycle.disconnected = True
            cycle.message_event.set()
        self.phase = "refused"
        if self.pipeline or not may_speak:  # in the middle of another reply
            self.transport.close()
            return
        reply, request_id = status_error_reply(error.status, str(error)), uuid4().hex
        headers = {"content-type": reply.media_type, "content-length": str(len(reply.content)), **reply.headers}
        headers |= {"x-request-id": request_id, "connection": "close"}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(STATUS_LINE[error.status] + head.encode() + b"\r\n" + reply.content)
        unknown = {"path": "", "raw_path": b"-", "method": "-", "client": self.client}
        log_reply({**unknown, "request_id": request_id}, error.status, 0.0)
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._set_timer(LINGER_TIMEOUT_S, self.transport.close)
        else:
            self.transport.close()


class CoalescingTransport:
    """The transport of one reply, on which its head waits for its body: a client is woken once, by all of it."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self.cycle = cycle
        self.transport = cycle.transport
        self.pending_head: bytes | None = None
        self.has_started = False

    def write(self, data: bytes) -> None:
        cycle = self.cycle
        if self.pending_head is not None:
            self.transport.writelines([self.pending_head, data])
            self.pending_head = None
        elif cycle.response_started and not self.has_started:
            self.has_started = True
            if cycle.expected_content_length and cycle.scope["method"] != "HEAD":
                self.pending_head = data
            else:
                self.transport.write(data)
        else:
            self.transport.write(data)

    def close(self) -> None:
        if self.pending_head is not None:
            self.transport.write(self.pending_head)
        self.transport.close()

    def is_closing(self) -> bool:
        return self.transport.is_closing()


def headers_too_large_error() -> ProtocolError:
    return ProtocolError(431, f"the head of a request has at most {MAX_HEADERS} headers and {MAX_HEADER_BYTES} bytes")
