"""Acceptor: accepts the connections of a listening socket, and makes room when the process has no descriptor left."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress

from cenote.api.http.protocol_error import ProtocolError, make_error_response

logger = logging.getLogger("cenote")

MAX_ACCEPTED = 32  # before other events are handled
PAUSE_S = 0.005  # until what has been closed to make room has given its descriptor back
ACCEPT_RETRY_S = 1.0  # after accept() failed for another reason
MAX_DROPPED_BYTES = 64 * 1024
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class Acceptor:
    def __init__(
        self,
        listener: socket.socket,
        on_accepted: Callable[[socket.socket], None],
        make_room: Callable[[str], bool],
        *,
        can_refuse: bool = True,
    ) -> None:
        """`make_room`: called with a message when no descriptor is left; returns whether a connection was closed.

        `can_refuse`: whether a client understands a response as its first bytes, which it does not with TLS.
        """
        self.listener = listener
        self.on_accepted = on_accepted
        self.make_room = make_room
        self.can_refuse = can_refuse
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        # kept for the time when there is no other: the connection that is accepted with it can be refused
        self._spare: int | None = None
        self._open_spare()

    def start(self) -> None:
        self._loop.add_reader(self.listener, self._on_readable)

    def stop(self) -> None:
        self._loop.remove_reader(self.listener)
        if self._timer is not None:
            self._timer.cancel()
        self._close_spare()

    def _on_readable(self) -> None:
        for _ in range(MAX_ACCEPTED):
            if not self._accept():
                return

    def _accept(self) -> bool:
        """Accept a connection; return whether there may be another one."""
        try:
            client, _ = self.listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            # another front-end was faster, or the client has disconnected. A Unix socket that refuses connections, as
            # the server shuts down, is always readable: not to be tried all the time
            if self.listener.family == socket.AF_UNIX:
                self._pause(PAUSE_S)
            return False
        except OSError as error:
            self._on_failed(error)
            return False
        self.on_accepted(client)
        return True

    def _on_failed(self, error: OSError) -> None:
        if error.errno not in NO_DESCRIPTORS:
            logger.error("accept() failed: %s", error.strerror)
            self._pause(ACCEPT_RETRY_S)
            return
        message = f"{error.strerror}: raise the limit of open files, or lower --max-connections; retry later"
        if self.make_room(message):
            self._pause(PAUSE_S)
        elif self._spare is not None:
            self._refuse_one(message)
        else:
            self._pause(ACCEPT_RETRY_S)

    def _refuse_one(self, message: str) -> None:
        """Accept a connection with the spare descriptor, to tell the client that there is no room."""
        self._close_spare()
        with suppress(OSError), self.listener.accept()[0] as client:
            client.setblocking(False)
            if self.can_refuse:
                client.send(make_error_response(ProtocolError(503, message), None))
                client.recv(MAX_DROPPED_BYTES)  # closing a socket with data unread would discard the response
        self._open_spare()

    def _open_spare(self) -> None:
        with suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY)

    def _close_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self.listener)
        self._timer = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        if self._spare is None:
            self._open_spare()
        self.start()
        self._accept()
