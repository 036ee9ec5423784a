"""Pass one end of a socket pair to another process: how front-ends and engines of any age are connected."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

# holds a few responses of usual size: a writer that fills it has to wake up once more; the system may allow less
SEND_BUFFER_BYTES = 4 * 1024**2
ENGINE_ID = struct.Struct("<Q")
LINK_RETRY_S = 1.0  # before another attempt to connect two processes for which no descriptors were left


def make_link() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a connection between a front-end and an engine process."""
    ends = socket.socketpair()
    for sock in ends:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        sock.setblocking(False)
    return ends


def make_link_sender() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a socket that carries links: datagrams, so that none is read in part."""
    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.setblocking(False)
    receiver.setblocking(False)
    return sender, receiver


def send_link(sender: socket.socket, link: socket.socket, engine_id: int) -> bool:
    """Pass a link to the process at the other end and close it here; return False if that process has exited."""
    with link:
        try:
            socket.send_fds(sender, [ENGINE_ID.pack(engine_id)], [link.fileno()])
        except OSError:
            return False
    return True


class LinkReceiver:
    """Call `on_link(sock, engine_id)` for every link that arrives, in the event loop.

    `on_lost(engine_id)` is called for one that this process could not take, as it has too many open files.
    """

    def __init__(
        self,
        receiver: socket.socket,
        on_link: Callable[[socket.socket, int], None],
        on_lost: Callable[[int], None] = lambda engine_id: None,
    ) -> None:
        self._receiver = receiver
        self._on_link = on_link
        self._on_lost = on_lost
        asyncio.get_running_loop().add_reader(receiver, self._receive)

    def _receive(self) -> None:
        with suppress(BlockingIOError, InterruptedError):
            message, fds, _, _ = socket.recv_fds(self._receiver, ENGINE_ID.size, 1)
            if message and not fds:
                asyncio.get_running_loop().call_later(LINK_RETRY_S, self._on_lost, *ENGINE_ID.unpack(message))
            for fd in fds:
                sock = socket.socket(fileno=fd)
                sock.setblocking(False)
                self._on_link(sock, ENGINE_ID.unpack(message)[0])

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._receiver)
        self._receiver.close()
