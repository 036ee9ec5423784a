"""One end of a socket pair: whole messages in both directions, large ones without needless copies."""

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

FRAME_HEADER = struct.Struct("<QQ")  # bytes of msgpack, bytes of numbers after it
ALIGNMENT = 8  # numbers start at a multiple of it
BUFFER_BYTES = 256 * 1024  # holds many small frames; a frame that is larger gets its own

message_encoder = msgspec.msgpack.Encoder()


class Channel(asyncio.BufferedProtocol, Generic[MessageT]):
    """Calls `receive(message, numbers)` for every frame, and `ended()` once when the other side has gone."""

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
        """Messages may come before this returns."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=sock)

    def send(self, message: Message, arrays: Sequence[Float32Array] = ()) -> None:
        """Hand a message to the socket; to an end that has gone, nothing is said."""
        frame = bytearray(FRAME_HEADER.size)
        message_encoder.encode_into(message, frame, FRAME_HEADER.size)
        FRAME_HEADER.pack_into(frame, 0, len(frame) - FRAME_HEADER.size, sum(each.nbytes for each in arrays))
        frame.extend(bytes(_align(len(frame)) - len(frame)))
        if self._transport is None or self._transport.is_closing():
            return
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent += [frame, *(each.data.cast("B") for each in arrays if each.size)]

    def _flush(self) -> None:
        """Everything that was said in one turn of the event loop goes out at once: the other side is woken once."""
        unsent, self._unsent = self._unsent, []
        if unsent and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(unsent)

    async def wait_writable(self) -> None:
        """Return when what was sent before is mostly read."""
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
        """Of the frame that starts there, prefix included; 0 while that is not known."""
        if self._num_filled - start < FRAME_HEADER.size:
            return 0
        words, numbers = FRAME_HEADER.unpack_from(self._buffer, start)
        return _align(FRAME_HEADER.size + words) + int(numbers)

    def _deliver(self, start: int, size: int) -> None:
        words, _ = FRAME_HEADER.unpack_from(self._buffer, start)
        frame = memoryview(self._buffer)[start : start + size]
        message = self._decoder.decode(frame[FRAME_HEADER.size : FRAME_HEADER.size + words])
        numbers = frame[_align(FRAME_HEADER.size + words) :]
        self._on_message(message, bytes(numbers) if self._buffer is self._shared_buffer else numbers)

    def _compact_buffer(self, start: int, size: int) -> None:
        """Keep what is left of the buffer from `start` on: a part of a frame of that size."""
        left = self._num_filled - start
        if size > BUFFER_BYTES and self._buffer is self._shared_buffer:
            own = bytearray(size)
            own[:left] = memoryview(self._buffer)[start : self._num_filled]
            self._buffer = own
        elif self._buffer is not self._shared_buffer and not left:
            self._buffer = self._shared_buffer
        elif start and left:
            self._buffer[:left] = self._buffer[start : self._num_filled]
        self._num_filled = left


def _align(size: int) -> int:
    return size + -size % ALIGNMENT
