"""One end of a socket pair: whole messages in both directions, large ones without needless copies."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

import msgspec

from cenote.api.encoding import Floats
from cenote.api.front_ends.messages import Message

logger = logging.getLogger("cenote")

Received = TypeVar("Received")

PREFIX = struct.Struct("<QQ")  # bytes of msgpack, bytes of numbers after it
ALIGNMENT = 8  # numbers start at a multiple of it
BUFFER_BYTES = 256 * 1024  # holds many small frames; a frame that is larger gets its own

encoder = msgspec.msgpack.Encoder()


class Channel(asyncio.BufferedProtocol, Generic[Received]):
    """Calls `receive(message, numbers)` for every frame, and `ended()` once when the other side has gone."""

    def __init__(
        self, kind: Any, receive: Callable[[Received, bytes | memoryview], None], ended: Callable[[], None]
    ) -> None:
        self._decoder: msgspec.msgpack.Decoder[Received] = msgspec.msgpack.Decoder(kind)
        self._receive = receive
        self._ended = ended
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._unsent: list[bytearray | memoryview] = []
        self._shared = bytearray(BUFFER_BYTES)
        self._buffer = self._shared
        self._filled = 0

    async def connect(self, end: socket.socket) -> None:
        """Messages may come before this returns."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=end)

    def send(self, message: Message, numbers: Sequence[Floats] = ()) -> None:
        """Hand a message to the socket; to an end that has gone, nothing is said."""
        frame = bytearray(PREFIX.size)
        encoder.encode_into(message, frame, PREFIX.size)
        PREFIX.pack_into(frame, 0, len(frame) - PREFIX.size, sum(each.nbytes for each in numbers))
        frame.extend(bytes(_aligned(len(frame)) - len(frame)))
        if self._transport is None or self._transport.is_closing():
            return
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent += [frame, *(each.data.cast("B") for each in numbers if each.size)]

    def _flush(self) -> None:
        """Everything that was said in one turn of the event loop goes out at once: the other side is woken once."""
        unsent, self._unsent = self._unsent, []
        if unsent and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(unsent)

    async def room(self) -> None:
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
        self._ended()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, num_bytes: int) -> None:
        self._filled += num_bytes
        start = 0
        while (size := self._frame_size(start)) and size <= self._filled - start:
            self._deliver(start, size)
            start += size
        self._make_room(start, size)

    def _frame_size(self, start: int) -> int:
        """Of the frame that starts there, prefix included; 0 while that is not known."""
        if self._filled - start < PREFIX.size:
            return 0
        words, numbers = PREFIX.unpack_from(self._buffer, start)
        return _aligned(PREFIX.size + words) + int(numbers)

    def _deliver(self, start: int, size: int) -> None:
        words, _ = PREFIX.unpack_from(self._buffer, start)
        frame = memoryview(self._buffer)[start : start + size]
        message = self._decoder.decode(frame[PREFIX.size : PREFIX.size + words])
        numbers = frame[_aligned(PREFIX.size + words) :]
        self._receive(message, bytes(numbers) if self._buffer is self._shared else numbers)

    def _make_room(self, start: int, size: int) -> None:
        """Keep what is left of the buffer from `start` on: a part of a frame of that size."""
        left = self._filled - start
        if size > BUFFER_BYTES and self._buffer is self._shared:
            own = bytearray(size)
            own[:left] = memoryview(self._buffer)[start : self._filled]
            self._buffer = own
        elif self._buffer is not self._shared and not left:
            self._buffer = self._shared
        elif start and left:
            self._buffer[:left] = self._buffer[start : self._filled]
        self._filled = left


def _aligned(size: int) -> int:
    return size + -size % ALIGNMENT
