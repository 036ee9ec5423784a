"""A simulated connection below `Channel`: bytes arrive late and in order, until it is cut or a process has exited."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from lab.protocol.process import Process
from lab.protocol.virtual_loop import VirtualLoop

ORDER_S = 1e-6  # between two arrivals: timers of the same time may run in any order
EOF = b""


class End:
    """One end of a connection: what `Channel` uses of a socket, and of the transport of it."""

    peer: End

    def __init__(self, loop: VirtualLoop, delay: Callable[[], float]) -> None:
        self.loop = loop
        self.delay = delay
        self.process: Process | None = None  # that has it; None: the supervisor
        self.stalled_until = 0.0  # nothing arrives here before
        self.last_at = 0.0  # when the last arrives that was sent to this end
        self._protocol: Any = None
        self._unread: deque[bytes] = deque()
        self._is_cut = self._is_paused = self._is_closed = self._is_lost = False

    def give_to(self, process: Process) -> None:
        """Let a process have it, which closes it when it exits."""
        self.process = process
        process.on_exit.append(self._shut)
        if process.has_exited:
            self._shut()

    def cut(self) -> None:
        """Lose what is under way, in both directions."""
        for end in (self, self.peer):
            end._is_cut = True
            end.loop.call_later(end.delay(), end._arrive, EOF)

    # as a socket

    def dup(self) -> Sender:
        return Sender(self)

    def close(self) -> None:
        """As a transport that has sent everything, or a socket that is not used."""
        if self._is_closed:
            return
        self._shut()
        if self._protocol is not None:
            self.loop.call_soon(self._lose)

    def send(self, data: bytes) -> int:
        if self._is_closed or self.peer._is_closed:
            raise BrokenPipeError
        self.peer._expect(bytes(data))
        return len(data)

    # as a transport

    def attach(self, protocol: Any) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        if self._is_closed:
            self.loop.call_soon(self._lose)
        else:
            self.loop.call_soon(self._read)

    def is_closing(self) -> bool:
        return self._is_closed

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        self._is_paused = True

    # what arrives

    def _expect(self, data: bytes) -> None:
        at = max(self.loop.time() + self.delay(), self.last_at + ORDER_S, self.stalled_until)
        self.last_at = at
        self.loop.call_at(at, self._arrive, data)

    def _arrive(self, data: bytes) -> None:
        if self._is_closed or (self._is_cut and data != EOF):
            return
        self._unread.append(data)
        if self.process is None:
            self._read()
        else:
            self.process.run(self._read)

    def _read(self) -> None:
        unread = self._unread
        while unread and self._protocol is not None and not self._is_paused and not self._is_closed:
            if (data := unread.popleft()) == EOF:
                self.close()
            while data:
                buffer = self._protocol.get_buffer(-1)
                size = min(len(buffer), len(data))
                buffer[:size] = data[:size]
                data = data[size:]
                self._protocol.buffer_updated(size)

    def _shut(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.peer._expect(EOF)

    def _lose(self) -> None:
        if not self._is_lost and (self.process is None or not self.process.has_exited):
            self._is_lost = True
            self._protocol.connection_lost(None)


class Sender:
    """The copy of an end that writes."""

    def __init__(self, end: End) -> None:
        self._end = end

    def setblocking(self, flag: bool) -> None: ...

    def close(self) -> None: ...

    def send(self, data: bytes) -> int:
        return self._end.send(data)

    def sendmsg(self, buffers: Iterable[bytes]) -> int:
        return self._end.send(b"".join(buffers))


def make_connection(loop: VirtualLoop, delay: Callable[[], float]) -> tuple[End, End]:
    ends = End(loop, delay), End(loop, delay)
    ends[0].peer, ends[1].peer = ends[1], ends[0]
    return ends
