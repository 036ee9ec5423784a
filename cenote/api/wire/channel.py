"""One end of a socket pair that carries framed messages both ways; large frames are not copied."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

import msgspec

from cenote.api.wire.messages import ArrayBytes, Message
from cenote.api.wire.socket_writer import SocketWriter

if TYPE_CHECKING:
    import numpy as np  # takes 0.1 s, which a server that starts does not have

logger = logging.getLogger("cenote")

MessageT = TypeVar("MessageT")
Array: TypeAlias = "np.ndarray[Any, Any]"

# version, bytes of the msgpack message, bytes of the arrays after it, call id of the message or 0
FRAME_HEADER = struct.Struct("<IIQQ")
WIRE_VERSION = 1  # both ends are started from the same installation; a file that changes in between is noticed
ALIGNMENT = 8  # arrays start at a multiple of it
PADDING = [bytes(-size % ALIGNMENT) for size in range(ALIGNMENT)]  # by the bytes after the last multiple
BUFFER_BYTES = 256 * 1024  # holds many small frames; a larger frame gets a buffer of its own
MAX_JOINED_BYTES = 32 * 1024  # copying arrays behind their message takes less time than a list of buffers
# larger lengths are not those of a frame: the sender writes garbage
MAX_MESSAGE_BYTES = 1 << 30
MAX_ARRAY_BYTES = 1 << 37

message_encoder = msgspec.msgpack.Encoder()


class Channel(asyncio.BufferedProtocol, Generic[MessageT]):
    """Call `on_message(message, array_bytes)` for every frame, and `on_closed()` once when the peer has closed.

    `on_unhandled(call_id, error)` is called for a frame whose message cannot be decoded, or whose `on_message` raised;
    the next frames are delivered, and the channel stays open unless its owner closes it there. After an invalid frame
    header the position of the next frame is unknown, and the channel is closed.
    """

    def __init__(
        self,
        message_type: Any,
        on_message: Callable[[MessageT, ArrayBytes], None],
        on_closed: Callable[[], None],
        on_unhandled: Callable[[int, Exception], None] = lambda call_id, error: None,
    ) -> None:
        self._decoder: msgspec.msgpack.Decoder[MessageT] = msgspec.msgpack.Decoder(message_type)
        self._on_message = on_message
        self._on_closed = on_closed
        self._on_unhandled = on_unhandled
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

    def send(self, message: Message, arrays: Sequence[Array] = ()) -> None:
        """Send a message and its arrays, which must not change afterwards; do nothing if the channel is closed.

        May be called in any thread.
        """
        frame = bytearray(FRAME_HEADER.size)
        message_encoder.encode_into(message, frame, FRAME_HEADER.size)
        num_bytes, array_bytes = len(frame) - FRAME_HEADER.size, sum(array.nbytes for array in arrays)
        if num_bytes > MAX_MESSAGE_BYTES or array_bytes > MAX_ARRAY_BYTES:
            raise OverflowError(f"a message of {num_bytes} bytes with {array_bytes} bytes of arrays is too large")
        FRAME_HEADER.pack_into(frame, 0, WIRE_VERSION, num_bytes, array_bytes, getattr(message, "call_id", 0))
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
        """Send what is left, then close."""
        is_open, self._is_closing = self.is_open, True
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
        self._on_closed()

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
        version, message_bytes, array_bytes, _ = FRAME_HEADER.unpack_from(self._buffer, start)
        if version != WIRE_VERSION or message_bytes > MAX_MESSAGE_BYTES or array_bytes > MAX_ARRAY_BYTES:
            raise WireError(
                f"invalid frame header: version {version} (expected {WIRE_VERSION}), {message_bytes} and {array_bytes} "
                "bytes; if Cenote was upgraded while the server runs, restart the server"
            )
        return _align(FRAME_HEADER.size + message_bytes) + int(array_bytes)

    def _deliver(self, start: int, size: int) -> None:
        _, message_bytes, _, call_id = FRAME_HEADER.unpack_from(self._buffer, start)
        frame = memoryview(self._buffer)[start : start + size]
        try:
            message = self._decoder.decode(frame[FRAME_HEADER.size : FRAME_HEADER.size + message_bytes])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            logger.error("a message of another process of this server cannot be decoded: %s", error)
            self._report_unhandled(call_id, error)
            return
        array_bytes = frame[_align(FRAME_HEADER.size + message_bytes) :]
        try:
            # the shared buffer is reused for the next frames, a buffer of its own is not; writable, as torch expects it
            self._on_message(message, bytearray(array_bytes) if self._buffer is self._shared_buffer else array_bytes)
        except Exception as error:  # asyncio would close the transport, with all that other messages wait for
            logger.exception("a message of another process of this server failed: %s", type(message).__name__)
            self._report_unhandled(call_id, error)

    def _report_unhandled(self, call_id: int, error: Exception) -> None:
        try:
            self._on_unhandled(call_id, error)
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
