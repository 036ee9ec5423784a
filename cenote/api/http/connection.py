"""HTTP/1.1 connection: parses requests, starts the ASGI app for each in order, and enforces limits and timeouts."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from enum import Enum
from typing import cast

import httptools

from cenote.api.http.deadline_timer import DeadlineTimer
from cenote.api.http.protocol_error import ProtocolError, make_error_response, to_protocol_error
from cenote.api.http.request_cycle import CycleConnection, RequestCycle
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
from cenote.api.http.response_head import HTTP_VERSION
from cenote.api.http.server_state import ServerState

HEADERS_TIMEOUT_S = 10.0  # from the first byte of the headers to the last
SLOW_HEADERS_S = 1.0  # a connection whose headers take longer is given up when another one finds no room
BODY_RATE_WINDOW_S = 10.0
MIN_BODY_RATE = 1024  # bytes per second, averaged over each window
# seconds to keep reading after the last response: closing at once could discard it before the client reads it
LINGER_TIMEOUT_S = 2.0
# seconds to wait at shutdown for the first request of a new connection: it may already be in transit
FIRST_REQUEST_GRACE_S = 1.0
# Requests that are parsed while they wait for the responses before them; the rest of the data waits unparsed.
MAX_PIPELINED = 16
END_OF_HEAD = b"\r\n\r\n"
# Fewer bytes hold no more than MAX_PIPELINED requests: a request line and an empty Host header.
MIN_PIPELINE_BYTES = MAX_PIPELINED * len(b"GET / HTTP/1.1\r\nHost:\r\n\r\n")
# Between two looks whether a client that has ended its side is still there; the first follows a round trip.
PEER_ROUND_TRIP_S, PEER_CHECK_S = 0.1, 1.0


class Phase(Enum):
    """What a connection receives next."""

    NEW = "first request"
    IDLE = "next request"
    HEADERS = "headers"
    BODY = "body"
    DISCARDING = "nothing: what the client still sends is dropped"


NEW, IDLE, HEADERS, BODY, DISCARDING = Phase  # names of the module are faster than attributes of an Enum


class HttpConnection(CycleConnection):
    def __init__(self, server_state: ServerState) -> None:
        super().__init__()
        self.server_state = server_state
        self.parser = httptools.HttpRequestParser(self)
        self.phase = NEW
        self.is_draining = False
        self.has_ended = False  # the client has shut down its writing side
        self.sent_ahead = b""  # of the response to the active request
        self.unparsed, self.unparsed_start = b"", 0  # data behind MAX_PIPELINED requests, and where to go on in it
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
        self.timed_since = 0.0  # time of the event loop at which that phase was found incomplete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport = cast("asyncio.Transport", transport)
        self.base_scope = make_base_scope(transport)
        state = self.server_state
        if len(state.connections) >= state.max_connections and not state.close_idle_connection():
            state.on_refused("connections", state.limit_message)
            self._send_error(ProtocolError(503, state.limit_message))
            return
        state.connections[self] = None
        self.timer.set(state.keep_alive_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server_state.connections.pop(self, None)
        self.phase = DISCARDING
        self.timer.cancel()
        for cycle in (self.active, self.cycle):
            if cycle is not None and not cycle.is_complete:
                cycle.disconnect()
        self.pipeline.clear()
        self.unparsed = b""
        self.resume_writing()
        del self.parser  # it refers to this object

    # called by the parser and the transport with what the client sends

    def data_received(self, data: bytes) -> None:
        if self.phase is DISCARDING:
            return
        if self.unparsed:
            self.unparsed, self.unparsed_start = self.unparsed[self.unparsed_start :] + data, 0
        elif len(data) > MIN_PIPELINE_BYTES and data.count(END_OF_HEAD) > MAX_PIPELINED:
            self.unparsed, self.unparsed_start = data, 0
            self._receive_unparsed()
        else:
            self._receive(data)

    def _receive_unparsed(self) -> None:
        """Parse as many requests as may wait, and keep the rest of the data for later."""
        data = self.unparsed
        while self.unparsed and len(self.pipeline) < MAX_PIPELINED:
            start, end = self.unparsed_start, data.find(END_OF_HEAD, self.unparsed_start) + len(END_OF_HEAD)
            if end < len(END_OF_HEAD) or end == len(data) or self.phase is DISCARDING:
                self.unparsed, end = b"", len(data)
            self.unparsed_start = end
            self._receive(memoryview(data)[start:end])
        if self.has_ended and not self.unparsed and not self.transport.is_closing():
            self._drop_incomplete_request()

    def eof_received(self) -> bool:
        """Answer what the client has sent completely, and close then; return whether the connection stays open.

        A client that has closed its socket looks like one that has only ended its side, until it is sent something. So
        the first bytes of the response are sent now: the system of a client that is gone resets the connection, and the
        request is cancelled.
        """
        self.has_ended = True
        active = self.active
        if active is None or active is self.cycle or not self.transport.can_write_eof():  # TLS has no such state
            return False
        if not self.unparsed:
            self._drop_incomplete_request()
        if not (active.is_started or self.sent_ahead):
            self.sent_ahead = HTTP_VERSION
            self.transport.write(HTTP_VERSION)
        self.timer.set(PEER_ROUND_TRIP_S)
        return True

    def _drop_incomplete_request(self) -> None:
        """Forget the request whose end never comes; those before it are answered."""
        cycle, self.cycle, self.phase = self.cycle, None, DISCARDING
        if cycle is not None and cycle is self.active:
            self.transport.close()
        elif cycle is not None and cycle in self.pipeline:
            self.pipeline.remove(cycle)

    def _receive(self, data: bytes | memoryview) -> None:
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
            self.timed_phase, self.window_bytes, self.timed_since = self.phase, 0, self.loop.time()
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
        if self.has_ended:
            return
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
            if self.unparsed:
                self._receive_unparsed()
        elif self.final_error is not None:
            self._send_error(self.final_error)
        elif self.has_ended:
            self.transport.close()
        elif self.phase is IDLE:
            self.timer.set(self.server_state.keep_alive_s)
        if not self.pipeline:
            self.resume_reading()

    def take_sent_ahead(self) -> bytes:
        """Return what has been sent of the head of the response that follows."""
        sent, self.sent_ahead = self.sent_ahead, b""
        return sent

    def is_last_response(self) -> bool:
        """Whether the connection closes after the response of the active request."""
        return (self.is_draining or self.has_ended) and not self.pipeline and self.final_error is None

    def resume_reading_for(self, cycle: RequestCycle) -> None:
        """Resume for the body of a request, or to notice a disconnect unless other requests wait already."""
        if cycle.has_more_body or not self.pipeline:
            self.resume_reading()

    # timeouts and the end of the connection

    @property
    def is_idle(self) -> bool:
        """Whether the connection has no request, and is not receiving one."""
        return self.active is None and (self.phase is IDLE or self.phase is NEW)

    @property
    def is_new(self) -> bool:
        """Whether the client has sent nothing yet."""
        return self.phase is NEW

    @property
    def is_slow(self) -> bool:
        """Whether the client, which waits for no response, takes long for the headers of a request."""
        is_receiving = self.active is None and self.phase is HEADERS and self.timed_phase is HEADERS
        return is_receiving and self.loop.time() - self.timed_since > SLOW_HEADERS_S

    def shutdown(self) -> None:
        """Accept no new request, but finish those being received or processed."""
        self.is_draining = True
        if self.phase is NEW:
            self.timer.set(FIRST_REQUEST_GRACE_S)
        elif self.is_idle:
            self.transport.close()

    def _on_timeout(self) -> None:
        if self.has_ended and self.active is not None:
            self._check_peer()
        elif self.is_reading_paused and self.phase in (HEADERS, BODY):  # the client is not the one that is slow
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

    def _check_peer(self) -> None:
        """Close the connection if the client has reset it: nothing is read any more that would tell."""
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        else:
            self.timer.set(PEER_CHECK_S)

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
