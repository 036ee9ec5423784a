"""One end of a socket pair that carries messages, calls and their replies as frames, both ways."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

import msgspec

from cenote.api.wire.codec_errors import deserialize_error, serialize_error
from cenote.api.wire.messages import ArrayBytes, Call, Message, SerializedError
from cenote.api.wire.socket_writer import SocketWriter
from cenote.errors import PoolingError, make_exited_error

if TYPE_CHECKING:
    import numpy as np  # takes 0.1 s, which a server that starts does not have

logger = logging.getLogger("cenote")

MessageT = TypeVar("MessageT")
ReplyT = TypeVar("ReplyT", bound=Message)
Array: TypeAlias = "np.ndarray[Any, Any]"
Reply = Message | tuple[Message, Sequence[Array]]

# version, kind, bytes of the msgpack message, bytes of the arrays after it, id of the call or 0
FRAME_HEADER = struct.Struct("<HHIQQ")
MESSAGE, CALL, REPLY, FAILURE, CANCEL = range(5)  # kinds of frames
WIRE_VERSION = 2  # both ends are started from the same installation; a file that changes in between is noticed
ALIGNMENT = 8  # arrays start at a multiple of it
PADDING = [bytes(-size % ALIGNMENT) for size in range(ALIGNMENT)]  # by the bytes after the last multiple
BUFFER_BYTES = 256 * 1024  # holds many small frames; a larger frame gets a buffer of its own
MAX_JOINED_BYTES = 32 * 1024  # copying arrays behind their message takes less time than a list of buffers
# larger lengths are not those of a frame: the sender writes garbage
MAX_MESSAGE_BYTES = 1 << 30
MAX_ARRAY_BYTES = 1 << 37

UNREADABLE = msgspec.MsgspecError, UnicodeDecodeError, RecursionError

message_encoder = msgspec.msgpack.Encoder()
failure_decoder = msgspec.msgpack.Decoder(SerializedError)


def refuse_calls(message: Any, array_bytes: ArrayBytes) -> Reply:
    raise PoolingError(f"{type(message).__name__} is no call that this process answers")


class Channel(asyncio.BufferedProtocol, Generic[MessageT]):
    """Call `on_message(message, array_bytes)` for every message, and `on_closed()` once when the peer has closed.

    `on_call(call, array_bytes)` returns the reply to a call of the peer, with arrays if it has some, or an awaitable
    of it; the caller gets the exception that it raises. Every call ends: with its reply, with that exception, or with
    `make_closed_error()` when the channel is closed.

    `on_unhandled(error)` is called for a message that cannot be decoded, or whose `on_message` raised; a call or reply
    that cannot be decoded fails alone. The next frames are delivered, and the channel stays open unless its owner
    closes it there. After an invalid frame header the position of the next frame is unknown, and it is closed.
    """

    def __init__(
        self,
        message_type: Any,
        on_message: Callable[[MessageT, ArrayBytes], None],
        on_closed: Callable[[], None],
        on_unhandled: Callable[[Exception], None] = lambda error: None,
        on_call: Callable[[Any, ArrayBytes], Reply | Awaitable[Reply]] = refuse_calls,
        make_closed_error: Callable[[], Exception] = make_exited_error,
    ) -> None:
        self._decoder: msgspec.msgpack.Decoder[MessageT] = msgspec.msgpack.Decoder(message_type)
        self.on_message = on_message
        self.on_closed = on_closed
        self.on_unhandled = on_unhandled
        self.on_call = on_call
        self._make_closed_error = make_closed_error
        self._call_ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}  # by call id: replies with their arrays
        self._answering: dict[int, asyncio.Task[None]] = {}  # by the peer's call id
        self._transport: asyncio.Transport | None = None
        self._writer: SocketWriter | None = None
        self._is_closing = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._shared_buffer = bytearray(BUFFER_BYTES)
        self._buffer = self._shared_buffer
        self._num_filled = 0

    async def connect(self, sock: socket.socket) -> None:
        """Attach to a connected socket; messages may arrive before this returns."""
        self._writer = SocketWriter(sock, self.pause_writing, self.resume_writing)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=sock)
        except BaseException:  # also cancelled
            self._writer.close()
            raise

    @property
    def is_open(self) -> bool:
        transport = self._transport  # read once: the event loop may remove it while another thread sends
        return transport is not None and not transport.is_closing() and not self._is_closing

    @property
    def num_unsent_bytes(self) -> int:
        """Bytes that wait until the peer has read others."""
        return 0 if self._writer is None else self._writer.num_unsent_bytes

    @property
    def num_pending_calls(self) -> int:
        """Calls of this end that are not answered."""
        return len(self._pending)

    def send(self, message: Message, arrays: Sequence[Array] = ()) -> None:
        """Send a message and its arrays, which must not change afterwards; do nothing if the channel is closed.

        May be called in any thread.
        """
        self._send(MESSAGE, 0, message, arrays)

    async def call(self, message: Call[ReplyT]) -> ReplyT:
        """Send a call and return its reply; the peer cancels what it does for it if this task is cancelled."""
        reply, _ = await self.start_call(message)
        return cast("ReplyT", reply)

    def start_call(self, message: Message) -> asyncio.Future[Any]:
        """Send a call and return the future of its reply and the arrays after it; raise what `send` raises."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if not self.is_open:
            future.set_exception(self._make_closed_error())
            return future
        call_id = next(self._call_ids)
        self._send(CALL, call_id, message)
        self._pending[call_id] = future
        future.add_done_callback(lambda done: self._on_call_done(call_id, done))
        return future

    def _on_call_done(self, call_id: int, future: asyncio.Future[Any]) -> None:
        self._pending.pop(call_id, None)
        if future.cancelled():
            self._send(CANCEL, call_id)
        else:
            future.exception()  # mark it as retrieved: perhaps nobody waits for it any more

    def _send(self, kind: int, call_id: int, message: Any = None, arrays: Sequence[Array] = ()) -> None:
        frame = bytearray(FRAME_HEADER.size)
        message_encoder.encode_into(message, frame, FRAME_HEADER.size)
        num_bytes, array_bytes = len(frame) - FRAME_HEADER.size, sum(array.nbytes for array in arrays)
        if num_bytes > MAX_MESSAGE_BYTES or array_bytes > MAX_ARRAY_BYTES:
            raise OverflowError(f"a message of {num_bytes} bytes with {array_bytes} bytes of arrays is too large")
        FRAME_HEADER.pack_into(frame, 0, WIRE_VERSION, kind, num_bytes, array_bytes, call_id)
        writer = self._writer
        if writer is None or not self.is_open:
            return
        frame += PADDING[len(frame) % ALIGNMENT]
        buffers = [array.data.cast("B") for array in arrays if array.size]
        if array_bytes <= MAX_JOINED_BYTES:
            frame += b"".join(buffers)
            writer.write((frame,))
        else:
            writer.write((frame, *buffers))

    async def wait_writable(self) -> None:
        """Wait until the peer has read most of what was sent before."""
        await self._writable.wait()

    def abort(self) -> None:
        """Close at once: what was received cannot be answered."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Send what is left, then close; calls whose replies have not arrived fail now."""
        is_open, self._is_closing = self.is_open, True
        self._fail_calls()
        if is_open and self._transport is not None and self._writer is not None:
            self._transport.pause_reading()
            self._writer.call_when_drained(self._transport.close)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._writer is not None:
            self._writer.close()
        self._writable.set()
        self._fail_calls()
        for task in list(self._answering.values()):
            task.cancel()
        self.on_closed()

    def _fail_calls(self) -> None:
        for future in list(self._pending.values()):
            if not future.done():
                future.set_exception(self._make_closed_error())

    def pause_writing(self) -> None:
        """Called by the writer, in any thread, when it has too much to send."""
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._num_filled :]

    def buffer_updated(self, num_bytes: int) -> None:
        self._num_filled += num_bytes
        start = 0
        try:
            while (size := self._frame_size(start)) and size <= self._num_filled - start:
                self._deliver(start, size)
                start += size
        except WireError as error:
            logger.error("closing the connection to another process of this server: %s", error)
            self._num_filled = 0
            if self._transport is not None:
                self._transport.abort()
            return
        self._compact_buffer(start, size)

    def _frame_size(self, start: int) -> int:
        """Return the bytes of the frame at `start`, header included; 0 while the header is incomplete."""
        if self._num_filled - start < FRAME_HEADER.size:
            return 0
        version, _, message_bytes, array_bytes, _ = FRAME_HEADER.unpack_from(self._buffer, start)
        if version != WIRE_VERSION or message_bytes > MAX_MESSAGE_BYTES or array_bytes > MAX_ARRAY_BYTES:
            raise WireError(
                f"invalid frame header: version {version} (expected {WIRE_VERSION}), {message_bytes} and {array_bytes} "
                "bytes; if Cenote was upgraded while the server runs, restart the server"
            )
        return _align(FRAME_HEADER.size + message_bytes) + int(array_bytes)

    def _deliver(self, start: int, size: int) -> None:
        _, kind, message_bytes, _, call_id = FRAME_HEADER.unpack_from(self._buffer, start)
        if kind == CANCEL:
            if (task := self._answering.get(call_id)) is not None:
                task.cancel()
            return
        frame = memoryview(self._buffer)[start : start + size]
        decoder: msgspec.msgpack.Decoder[Any] = failure_decoder if kind == FAILURE else self._decoder
        try:
            message = decoder.decode(frame[FRAME_HEADER.size : FRAME_HEADER.size + message_bytes])
        except UNREADABLE as error:
            logger.error("a message of another process of this server cannot be decoded: %s", error)
            self._on_failed(kind, call_id, error)
            return
        array_bytes: ArrayBytes = frame[_align(FRAME_HEADER.size + message_bytes) :]
        if self._buffer is self._shared_buffer:
            # it is reused for the next frames, a buffer of its own is not; writable, as torch expects it
            array_bytes = bytearray(array_bytes)
        try:
            if kind == MESSAGE:
                self.on_message(message, array_bytes)
            elif kind == CALL:
                self._answer(call_id, self.on_call(message, array_bytes))
            elif (future := self._pending.get(call_id)) is not None and not future.done():
                if kind == FAILURE:
                    future.set_exception(deserialize_error(message))
                else:
                    future.set_result((message, array_bytes))
        except Exception as error:  # asyncio would close the transport, with all that other messages wait for
            if kind != CALL or not isinstance(error, PoolingError):
                logger.exception("a message of another process of this server failed: %s", type(message).__name__)
            self._on_failed(kind, call_id, error)

    def _answer(self, call_id: int, reply: Reply | Awaitable[Reply]) -> None:
        if isinstance(reply, Message | tuple):
            message, arrays = reply if isinstance(reply, tuple) else (reply, ())
            self._send(REPLY, call_id, message, arrays)
            return
        task = asyncio.get_running_loop().create_task(self._answer_later(call_id, reply))
        self._answering[call_id] = task
        task.add_done_callback(lambda _: self._answering.pop(call_id, None))

    async def _answer_later(self, call_id: int, awaitable: Awaitable[Reply]) -> None:
        try:
            reply = await awaitable
            await self.wait_writable()
            self._answer(call_id, reply)
        except Exception as error:
            if not isinstance(error, PoolingError):
                logger.exception("a call of another process of this server failed")
            self._on_failed(CALL, call_id, error)

    def _on_failed(self, kind: int, call_id: int, error: Exception) -> None:
        """Fail the call that a frame belongs to, or report the error."""
        try:
            if kind == MESSAGE:
                self.on_unhandled(error)
            elif kind == CALL:
                if isinstance(error, UNREADABLE):
                    error = PoolingError("the request could not be read by the engine process")
                self._send(FAILURE, call_id, serialize_error(error))
            elif (future := self._pending.get(call_id)) is not None and not future.done():
                future.set_exception(PoolingError("the response of the engine process cannot be read"))
        except Exception:
            logger.exception("the failure of a message could not be reported")

    def _compact_buffer(self, start: int, size: int) -> None:
        """Keep the bytes from `start` on, the beginning of a frame of `size` bytes, in a buffer that fits the frame."""
        num_left = self._num_filled - start
        if size > BUFFER_BYTES and self._buffer is self._shared_buffer:
            frame_buffer = bytearray(size)
            frame_buffer[:num_left] = memoryview(self._buffer)[start : self._num_filled]
            self._buffer = frame_buffer
        elif self._buffer is not self._shared_buffer and not num_left:
            self._buffer = self._shared_buffer
        elif start and num_left:
            self._buffer[:num_left] = self._buffer[start : self._num_filled]
        self._num_filled = num_left


class WireError(Exception):
    """The bytes received are not frames."""


def _align(size: int) -> int:
    return size + -size % ALIGNMENT
