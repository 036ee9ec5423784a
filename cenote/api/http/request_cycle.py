"""One request and its response: the `receive` and `send` of ASGI."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Scope

from cenote.api.http.flow_control import FlowControl
from cenote.api.http.response_head import check_names, format_head, parse_content_length

logger = logging.getLogger("cenote")

# bytes of a body that wait for the app before reading from the socket pauses
MAX_BUFFERED_BODY = 64 * 1024
# larger bodies are not copied to follow the headers in one buffer
MAX_JOINED_BODY = 64 * 1024
STATUSES_WITHOUT_BODY = (204, 304)


class CycleConnection(FlowControl):
    """The connection of a request, as the request sees it."""

    has_ended: bool  # the client has shut down its writing side

    @abstractmethod
    def on_app_done(self, cycle: RequestCycle) -> None: ...

    @abstractmethod
    def on_response_complete(self, cycle: RequestCycle) -> None: ...

    @abstractmethod
    def take_sent_ahead(self) -> bytes: ...

    @abstractmethod
    def is_last_response(self) -> bool: ...

    @abstractmethod
    def resume_reading_for(self, cycle: RequestCycle) -> None: ...


class RequestCycle:
    __slots__ = (
        "body_bytes",
        "body_parts",
        "connection",
        "expects_continue",
        "has_more_body",
        "is_body_read",
        "is_chunked",
        "is_complete",
        "is_disconnected",
        "is_started",
        "keep_alive",
        "remaining_bytes",
        "scope",
        "start_message",
        "task",
        "waiters",
    )

    def __init__(self, connection: CycleConnection, scope: Scope, keep_alive: bool, expects_continue: bool) -> None:
        self.connection = connection
        self.scope = scope
        self.keep_alive = keep_alive
        self.expects_continue = expects_continue  # the client waits for "100 Continue" before it sends the body
        self.is_disconnected = False
        self.task: asyncio.Task[None] | None = None
        self.waiters: list[asyncio.Future[Message]] = []  # calls of receive() that wait
        # the request body
        self.body_parts: list[bytes] = []  # received and not yet read by the app
        self.body_bytes = 0
        self.has_more_body = True  # not completely received
        self.is_body_read = False  # the app has read all of it
        # the response
        self.start_message: Message | None = None  # kept until the first part of the body, to send both at once
        self.is_started = False  # its head has been written
        self.is_complete = False
        self.is_chunked = False
        self.remaining_bytes: int | None = None  # of Content-Length; None if it has none

    async def run(self, app: ASGIApp) -> None:
        try:
            await app(self.scope, self.receive, self.send)
            if not (self.is_complete or self.is_disconnected):
                logger.error("%s: the app returned without a complete response", self.scope["path"])
                self._fail()
        except Exception as error:
            logger.error("%s: the app failed", self.scope["path"], exc_info=error)
            self._fail()
        except BaseException:  # cancelled
            self._fail()
            raise
        finally:
            self.connection.on_app_done(self)

    def add_body(self, part: bytes) -> None:
        self.body_parts.append(part)
        self.body_bytes += len(part)
        if self.body_bytes > MAX_BUFFERED_BODY:
            self.connection.pause_reading()
        if self.waiters:
            self._wake_up()

    def end_body(self) -> None:
        self.has_more_body = False
        if self.waiters:
            self._wake_up()

    def disconnect(self) -> None:
        """Tell the app that the client is gone; what it still sends is dropped."""
        self.is_disconnected = True
        if self.waiters:
            self._wake_up()

    def receive(self) -> Awaitable[Message]:
        """Return an awaitable of the next message.

        Once the body is read it is a future, not a coroutine: a caller that only watches for the disconnect adds a
        callback to it, without a task.
        """
        if self.expects_continue:
            self._send_continue()
        message = self._next_message()
        if message is None:
            waiter: asyncio.Future[Message] = self.connection.loop.create_future()
            self.waiters = [other for other in self.waiters if not other.done()] if self.waiters else []
            self.waiters.append(waiter)
            self.connection.resume_reading_for(self)
            return waiter
        if self.has_more_body:
            self.connection.resume_reading_for(self)
        return _give(message)

    def _next_message(self) -> Message | None:
        """Return the message that receive() can give now, or None."""
        if self.is_disconnected or self.is_complete:
            return {"type": "http.disconnect"}
        if self.is_body_read or (self.has_more_body and not self.body_parts):
            return None
        parts = self.body_parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        self.body_parts, self.body_bytes = [], 0
        self.is_body_read = not self.has_more_body
        return {"type": "http.request", "body": body, "more_body": self.has_more_body}

    def _wake_up(self) -> None:
        waiting = [waiter for waiter in self.waiters if not waiter.done()]
        while waiting and (message := self._next_message()) is not None:
            waiting.pop(0).set_result(message)
        self.waiters = waiting

    def _send_continue(self) -> None:
        self.expects_continue = False
        if self.has_more_body and not (self.body_parts or self.is_disconnected or self.is_started):
            self.connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def send(self, message: Message) -> None:
        connection = self.connection
        if connection.is_writing_paused and not self.is_disconnected:
            await connection.wait_writable()
        if self.is_disconnected:
            return
        message_type = message["type"]
        if message_type == "http.response.start":
            if self.start_message is not None:
                raise RuntimeError("http.response.start was sent twice")
            self.start_message = message
        elif message_type != "http.response.body" or self.start_message is None or self.is_complete:
            raise RuntimeError(f"unexpected ASGI message {message_type!r}")
        else:
            self._send_body(self.start_message, message.get("body", b""), message.get("more_body", False))
            if self.is_complete and connection.is_writing_paused:
                await connection.wait_writable()  # the app counts a large response as in flight until it is sent

    def _send_body(self, start: Message, body: bytes | memoryview, more_body: bool) -> None:
        transport = self.connection.transport
        head = b"" if self.is_started else self._make_head(start, len(body), more_body)
        size = len(body)
        if self.scope["method"] == "HEAD" or start["status"] in STATUSES_WITHOUT_BODY:
            body = b""
        elif self.is_chunked:
            chunk = b"".join((b"%x\r\n" % size, body, b"\r\n")) if size else b""
            body = chunk if more_body else chunk + b"0\r\n\r\n"
        elif self.remaining_bytes is not None:
            if size > self.remaining_bytes or (size < self.remaining_bytes and not more_body):
                raise RuntimeError(f"response body has {size} bytes, {self.remaining_bytes} remain of content-length")
            self.remaining_bytes -= size
        self.is_started = True
        if not body:
            if head:
                transport.write(head)
        elif not head:
            transport.write(body)
        elif size <= MAX_JOINED_BODY:
            transport.write(b"".join((head, body)))
        else:
            transport.writelines((head, body))
        if not more_body:
            self.is_complete = True
            if self.waiters:
                self._wake_up()
            self.connection.on_response_complete(self)

    def _make_head(self, start: Message, size: int, more_body: bool) -> bytes:
        status, headers = start["status"], list(start.get("headers", ()))
        fields = check_names(headers)
        content_length, connection = fields.get(b"content-length"), fields.get(b"connection")
        if b"transfer-encoding" in fields:
            raise RuntimeError("transfer-encoding is set by the server, not by the app")
        # a client that waits for "100 Continue" in vain may send the body or not: what follows cannot be parsed
        if (self.expects_continue and self.has_more_body) or self.connection.is_last_response():
            self.keep_alive = False
        if connection is not None and b"close" in connection.lower():
            self.keep_alive = False
        elif not self.keep_alive:
            headers.append((b"connection", b"close"))
        if content_length is not None:
            self.remaining_bytes = parse_content_length(content_length, headers)
        elif status in STATUSES_WITHOUT_BODY or self.scope["method"] == "HEAD":
            pass
        elif not more_body:
            self.remaining_bytes = size
            headers.append((b"content-length", b"%d" % size))
        elif self.scope["http_version"] != "1.0":  # whose bodies end with the connection instead
            self.is_chunked = True
            headers.append((b"transfer-encoding", b"chunked"))
        head = format_head(status, headers)
        return head.removeprefix(self.connection.take_sent_ahead()) if self.connection.has_ended else head

    def _fail(self) -> None:
        """End a response that the app did not complete: with status 500 if nothing was sent, else by disconnecting."""
        if self.is_complete or self.is_disconnected:
            return
        if self.is_started:
            self.connection.transport.close()
            return
        self.keep_alive = self.is_chunked = False
        self.start_message = {"status": 500, "headers": [(b"content-type", b"text/plain; charset=utf-8")]}
        self._send_body(self.start_message, b"Internal Server Error", False)


async def _give(message: Message) -> Message:
    return message
