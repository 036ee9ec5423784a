"""HTTP/1.1 connection: parses requests, starts the ASGI app for each in order, and enforces limits and timeouts."""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum
from typing import cast

import httptools

from cenote.api.http.deadline_timer import DeadlineTimer
from cenote.api.http.flow_control import FlowControl
from cenote.api.http.protocol_error import ProtocolError, make_error_response, to_protocol_error
from cenote.api.http.request_cycle import RequestCycle
from cenote.api.http.request_head import (
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_URL_BYTES,
    check_header_size,
    check_headers,
    format_without_upgrade,
    headers_too_large_error,
    is_continue_expected,
    make_base_scope,
    parse_target,
)
from cenote.api.http.server_state import ServerState

HEADERS_TIMEOUT_S = 10.0  # from the first byte of the headers to the last
BODY_RATE_WINDOW_S = 10.0
MIN_BODY_RATE = 1024  # bytes per second, averaged over each window
# seconds to keep reading after the last response: closing at once could discard it before the client reads it
LINGER_TIMEOUT_S = 2.0
# seconds to wait at shutdown for the first request of a new connection: it may already be in transit
FIRST_REQUEST_GRACE_S = 1.0


class Phase(Enum):
    """What a connection receives next."""

    NEW = "first request"
    IDLE = "next request"
    HEADERS = "headers"
    BODY = "body"
    DISCARDING = "nothing: what the client still sends is dropped"


NEW, IDLE, HEADERS, BODY, DISCARDING = Phase  # names of the module are faster than attributes of an Enum


class HttpConnection(FlowControl):
    def __init__(self, server_state: ServerState) -> None:
        super().__init__()
        self.server_state = server_state
        self.parser = httptools.HttpRequestParser(self)
        self.phase = NEW
        self.is_draining = False
        # the request being received
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.cycle: RequestCycle | None = None
        self.chunk_bytes = 0  # size of the data being parsed
        # bytes without a part of the body: of its headers, or of chunk extensions and trailers. None in its first data,
        # which may begin with other requests
        self.overhead_bytes: int | None = None
        self.window_bytes = 0  # of its body, in the current rate window
        # the requests being answered
        self.active: RequestCycle | None = None
        self.pipeline: deque[RequestCycle] = deque()  # requests that wait for the response of the active one
        self.final_error: ProtocolError | None = None  # to send after the responses of the requests before it
        self.timer = DeadlineTimer(self.loop, self._on_timeout)
        self.timed_phase: Phase | None = None  # phase of the current request that the timer is set for

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport = cast("asyncio.Transport", transport)
        self.base_scope = make_base_scope(transport)
        if len(self.server_state.connections) >= self.server_state.max_connections and not self._make_room():
            self._refuse_connection()
            return
        self.server_state.connections.add(self)
        self.timer.set(self.server_state.keep_alive_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server_state.connections.discard(self)
        self.phase = DISCARDING
        self.timer.cancel()
        for cycle in (self.active, self.cycle):
            if cycle is not None and not cycle.is_complete:
                cycle.disconnect()
        self.pipeline.clear()
        self.resume_writing()
        del self.parser  # it refers to this object

    # called by the parser and the transport with what the client sends

    def data_received(self, data: bytes) -> None:
        if self.phase is DISCARDING:
            return
        self.chunk_bytes = len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            if self.phase is not DISCARDING:  # otherwise data after the last request
                self._reject(to_protocol_error(error))
            return
        if self.phase is HEADERS or self.phase is BODY:
            self._check_incomplete_request(len(data))

    def _parse(self, data: bytes | memoryview) -> None:
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                offset = upgrade.args[0]
            # the parser would drop the body of a request with an upgrade: parse it again without
            parser, self.parser = self.parser, httptools.HttpRequestParser(self)
            head = format_without_upgrade(parser.get_method(), self.url, parser.get_http_version(), self.headers)
            self.parser.feed_data(head)
            data = memoryview(data)[offset:]

    def _check_incomplete_request(self, size: int) -> None:
        self.window_bytes += size
        self.overhead_bytes = 0 if self.overhead_bytes is None else self.overhead_bytes + size
        if self.overhead_bytes > MAX_HEADER_BYTES:
            self._reject(headers_too_large_error())
        elif self.timed_phase is not self.phase:
            self.timed_phase, self.window_bytes = self.phase, 0
            self.timer.set(HEADERS_TIMEOUT_S if self.phase is HEADERS else BODY_RATE_WINDOW_S)

    def on_message_begin(self) -> None:
        if self.phase is DISCARDING:
            raise ProtocolError(400, "data after the last request")
        self.phase = HEADERS
        self.url = b""
        self.headers = []
        self.overhead_bytes = self.timed_phase = None

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > MAX_URL_BYTES:
            raise ProtocolError(414, f"URL too long: limit {MAX_URL_BYTES} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser, headers = self.parser, self.headers
        if len(headers) > MAX_HEADERS:
            raise headers_too_large_error()
        if self.overhead_bytes is not None or self.chunk_bytes > MAX_HEADER_BYTES:
            check_header_size(headers)
        http_version = parser.get_http_version()
        fields = check_headers(headers, http_version)
        method = parser.get_method().decode("ascii")
        if method == "CONNECT":
            raise ProtocolError(400, "method CONNECT is not supported: this server is not a proxy")
        if parser.should_upgrade():
            return
        scope = self.base_scope.copy()
        scope["method"], scope["headers"] = method, headers
        if http_version != "1.1":
            scope["http_version"] = http_version
        scope["path"], scope["raw_path"], scope["query_string"] = parse_target(self.url)
        keep_alive = parser.should_keep_alive() and http_version == "1.1"
        expects_continue = b"expect" in fields and is_continue_expected(fields[b"expect"], http_version)
        self.cycle = cycle = RequestCycle(self, scope, keep_alive, expects_continue)
        self.phase = BODY
        self.overhead_bytes = None
        self.headers = []  # trailers must not become headers of a request in progress; no route uses them
        if self.active is None:
            self._start(cycle)
        else:
            self.pause_reading()
            self.pipeline.append(cycle)

    def on_body(self, body: bytes) -> None:
        self.overhead_bytes = None
        cycle = self.cycle
        if cycle is not None and not cycle.is_complete:
            cycle.add_body(body)

    def on_message_complete(self) -> None:
        cycle = self.cycle
        if cycle is None or self.parser.should_upgrade():
            return
        self.phase = IDLE if cycle.keep_alive else DISCARDING
        self.cycle = None
        cycle.end_body()
        if cycle.is_complete:  # the response did not wait for the body
            self.timer.set(self.server_state.keep_alive_s)
        else:
            self.timer.clear()

    # called by request cycles

    def _start(self, cycle: RequestCycle) -> None:
        self.active = cycle
        cycle.task = task = self.loop.create_task(cycle.run(self.server_state.app))
        self.server_state.tasks.add(task)

    def on_app_done(self, cycle: RequestCycle) -> None:
        if cycle.task is not None:
            self.server_state.tasks.discard(cycle.task)
            cycle.task = None

    def on_response_complete(self, cycle: RequestCycle) -> None:
        self.active = None
        if self.transport.is_closing():
            return
        if not cycle.keep_alive:
            self._close(is_lingering=cycle.has_more_body)
        elif self.pipeline:
            self._start(self.pipeline.popleft())
        elif self.final_error is not None:
            self._send_error(self.final_error)
        elif self.phase is IDLE:
            self.timer.set(self.server_state.keep_alive_s)
        if not self.pipeline:
            self.resume_reading()

    def is_last_response(self) -> bool:
        """Whether the connection closes after the response of the active request."""
        return self.is_draining and not self.pipeline and self.final_error is None

    def resume_reading_for(self, cycle: RequestCycle) -> None:
        """Resume for the body of a request, or to notice a disconnect unless other requests wait already."""
        if cycle.has_more_body or not self.pipeline:
            self.resume_reading()

    # timeouts and the end of the connection

    def shutdown(self) -> None:
        """Accept no new request, but finish those being received or processed."""
        self.is_draining = True
        if self.phase is NEW:
            self.timer.set(FIRST_REQUEST_GRACE_S)
        elif self.phase is IDLE and self.active is None:
            self.transport.close()

    def _make_room(self) -> bool:
        """Close an idle connection in favour of this one; return whether there was one."""
        for other in self.server_state.connections:
            if other.active is None and (other.phase is IDLE or other.phase is NEW):
                other.transport.close()
                self.server_state.connections.discard(other)
                return True
        return False

    def _refuse_connection(self) -> None:
        limit = self.server_state.max_connections
        message = f"too many connections: limit {limit} of this process (--max-connections); retry later"
        self.server_state.on_refused(message)
        self._send_error(ProtocolError(503, message))

    def _on_timeout(self) -> None:
        if self.is_reading_paused and self.phase in (HEADERS, BODY):  # the client is not the one that is slow
            self.timer.set(BODY_RATE_WINDOW_S)
        elif self.phase is HEADERS:
            self._reject(ProtocolError(408, f"request headers not received within {HEADERS_TIMEOUT_S:g} s"))
        elif self.phase is BODY and self.window_bytes >= MIN_BODY_RATE * BODY_RATE_WINDOW_S:
            self.window_bytes = 0
            self.timer.set(BODY_RATE_WINDOW_S)
        elif self.phase is BODY:
            self._reject(ProtocolError(408, f"request body received at less than {MIN_BODY_RATE} bytes per second"))
        else:
            self.transport.close()

    def _reject(self, error: ProtocolError) -> None:
        """Read no further; send an error response in the place of the current request, after those before it."""
        if self.transport.is_closing():
            return
        cycle, phase = self.cycle, self.phase
        self.phase = DISCARDING
        self.timer.clear()
        if phase is BODY and cycle is not None:
            if cycle.is_started:  # one request never gets two responses
                self._close(is_lingering=cycle.is_complete)
                return
            cycle.disconnect()
            if self.active is cycle:
                self.active = None
            else:
                self.pipeline.remove(cycle)
        if self.active is None:
            self._send_error(error)
        else:
            self.final_error = error

    def _send_error(self, error: ProtocolError) -> None:
        """Send an error response without running the app, and close the connection."""
        self.transport.write(make_error_response(error, self.base_scope["client"]))
        self._close(is_lingering=True)

    def _close(self, *, is_lingering: bool) -> None:
        self.phase = DISCARDING
        self.timer.clear()
        self.pipeline.clear()
        if is_lingering and self.transport.can_write_eof():
            self.transport.write_eof()
            self.timer.set(LINGER_TIMEOUT_S)
        else:
            self.transport.close()
