"""One end of a socket pair that carries framed messages both ways; large frames are not copied."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

import msgspec

from cenote.api.encoding import Float32Array
from cenote.api.front_ends.messages import Message

logger = logging.getLogger("cenote")

MessageT = TypeVar("MessageT")

FRAME_HEADER = struct.Struct("<QQ")  # bytes of the msgpack message, bytes of the arrays after it
ALIGNMENT = 8  # arrays start at a multiple of it
BUFFER_BYTES = 256 * 1024  # holds many small frames; a larger frame gets a buffer of its own

message_encoder = msgspec.msgpack.Encoder()


class Channel(asyncio.BufferedProtocol, Generic[MessageT]):
    """Call `on_message(message, array_bytes)` for every frame, and `on_closed()` once when the peer has closed."""

    def __init__(
        self,
        message_type: Any,
        on_message: Callable[[MessageT, bytes | memoryview], None],
        on_closed: Callable[[], None],
    ) -> None:
        self._decoder: msgspec.msgpack.Decoder[MessageT] = msgspec.msgpack.Decoder(message_type)
        self._on_message = on_message
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._unsent: list[bytearray | memoryview] = []
        self._shared_buffer = bytearray(BUFFER_BYTES)
        self._buffer = self._shared_buffer
        self._num_filled = 0

    async def connect(self, sock: socket.socket) -> None:
        """Attach to a connected socket; messages may arrive before this returns."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=sock)

    def send(self, message: Message, arrays: Sequence[Float32Array] = ()) -> None:
        """Queue a message and its arrays for sending; do nothing if the channel is closed."""
        frame = bytearray(FRAME_HEADER.size)
        message_encoder.encode_into(message, frame, FRAME_HEADER.size)
        FRAME_HEADER.pack_into(frame, 0, len(frame) - FRAME_HEADER.size, sum(array.nbytes for array in arrays))
        frame.extend(bytes(_align(len(frame)) - len(frame)))
        if self._transport is None or self._transport.is_closing():
            return
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent += [frame, *(array.data.cast("B") for array in arrays if array.size)]

    def _flush(self) -> None:
        """Send everything queued in one iteration of the event loop at once, so that the peer wakes up once."""
        unsent, self._unsent = self._unsent, []
        if unsent and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(unsent)

    async def wait_writable(self) -> None:
        """Wait until the peer has read most of what was sent before."""
        await self._writable.wait()

    def close(self) -> None:
        """Send what is left, then close."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._writable.set()
        self._on_closed()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._num_filled :]

    def buffer_updated(self, num_bytes: int) -> None:
        self._num_filled += num_bytes
        start = 0
        while (size := self._frame_size(start)) and size <= self._num_filled - start:
            self._deliver(start, size)
            start += size
        self._compact_buffer(start, size)

    def _frame_size(self, start: int) -> int:
        """Return the bytes of the frame at `start`, header included; 0 while the header is incomplete."""
        if self._num_filled - start < FRAME_HEADER.size:
            return 0
        message_bytes, array_bytes = FRAME_HEADER.unpack_from(self._buffer, start)
        return _align(FRAME_HEADER.size + message_bytes) + int(array_bytes)

    def _deliver(self, start: int, size: int) -> None:
        message_bytes, _ = FRAME_HEADER.unpack_from(self._buffer, start)
        frame = memoryview(self._buffer)[start : start + size]
        message = self._decoder.decode(frame[FRAME_HEADER.size : FRAME_HEADER.size + message_bytes])
        array_bytes = frame[_align(FRAME_HEADER.size + message_bytes) :]
        # the shared buffer is reused for the next frames, a buffer of its own is not
        self._on_message(message, bytes(array_bytes) if self._buffer is self._shared_buffer else array_bytes)

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


def _align(size: int) -> int:
    return size + -size % ALIGNMENT
