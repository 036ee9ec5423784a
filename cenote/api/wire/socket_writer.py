"""Write to a socket from any thread: at once if it takes the bytes, and through the event loop if it is full."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice

Buffer = bytes | bytearray | memoryview

MAX_BUFFERS = 1024  # of one call of sendmsg (IOV_MAX)
# bytes that wait for the peer from which callers should wait, and from which they may continue
HIGH_WATER_BYTES, LOW_WATER_BYTES = 64 * 1024, 16 * 1024


class SocketWriter:
    """The sending side of a stream socket; `on_paused` may be called in any thread, `on_resumed` in the event loop.

    A message that is written by the thread that made it needs no turn of the event loop, which may have to wait for
    the interpreter lock first. Errors are not reported: the reading side notices when the peer has closed.
    """

    def __init__(self, sock: socket.socket, on_paused: Callable[[], None], on_resumed: Callable[[], None]) -> None:
        self._socket = sock.dup()  # stays valid until this object closes it, whatever another thread does
        self._socket.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._on_paused = on_paused
        self._on_resumed = on_resumed
        self._on_drained: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self._unsent: deque[Buffer] = deque()
        self.num_unsent_bytes = 0
        self._is_paused = False
        self._is_closed = False

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Send the buffers, which must not change afterwards; do nothing if the writer is closed."""
        with self._lock:
            if self._is_closed:
                return
            was_empty = not self._unsent
            self._unsent += buffers
            self.num_unsent_bytes += sum(map(len, buffers))
            if was_empty and self._send() and self._unsent:
                with suppress(RuntimeError):  # the event loop has been closed: the process exits
                    self._loop.call_soon_threadsafe(self._wait_writable)
            if self.num_unsent_bytes > HIGH_WATER_BYTES and not self._is_paused:
                self._is_paused = True
                self._on_paused()

    def call_when_drained(self, callback: Callable[[], None]) -> None:
        """Call back in the event loop once everything is sent: now, if it is."""
        with self._lock:  # another thread may be sending the last bytes
            self._on_drained = callback
            is_drained = not self._unsent
        if is_drained:
            callback()

    def close(self) -> None:
        """Drop what is not sent; called in the event loop."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._drop_unsent()
            with suppress(RuntimeError):
                self._loop.remove_writer(self._socket)
            self._socket.close()

    def _wait_writable(self) -> None:
        if not self._is_closed:
            self._loop.add_writer(self._socket, self._send_more)

    def _send_more(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._send()
            is_drained = not self._unsent
            if is_drained:
                self._loop.remove_writer(self._socket)
            is_resumed = self._is_paused and self.num_unsent_bytes <= LOW_WATER_BYTES
            if is_resumed:
                self._is_paused = False
        if is_resumed:
            self._on_resumed()
        if is_drained and self._on_drained is not None:
            self._on_drained()

    def _send(self) -> bool:
        """Send what the socket takes; return whether the peer is still there."""
        unsent = self._unsent
        while unsent:
            try:
                if len(unsent) == 1:
                    size = self._socket.send(unsent[0])
                else:
                    size = self._socket.sendmsg(islice(unsent, MAX_BUFFERS))
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                self._drop_unsent()
                return False
            self.num_unsent_bytes -= size
            while unsent and size >= len(unsent[0]):
                size -= len(unsent.popleft())
            if size:
                unsent[0] = memoryview(unsent[0])[size:]
        return True

    def _drop_unsent(self) -> None:
        self._unsent.clear()
        self.num_unsent_bytes = 0
