"""Balanced accept(): of several front-ends that share a listening socket, the least busy accepts next."""

from __future__ import annotations

import socket
from collections.abc import Callable

from cenote.api.http.acceptor import PAUSE_S, Acceptor


class BalancedAcceptor(Acceptor):
    """Accept connections for one front-end, one at a time.

    Yields briefly to less busy front-ends: otherwise the first one that the kernel wakes takes a whole burst.
    """

    def __init__(
        self,
        listener: socket.socket,
        on_accepted: Callable[[socket.socket], None],
        make_room: Callable[[str], bool],
        is_busier: Callable[[], bool],
        *,
        can_refuse: bool = True,
    ) -> None:
        super().__init__(listener, on_accepted, make_room, can_refuse=can_refuse)
        self.is_busier = is_busier

    def _on_readable(self) -> None:
        if self.is_busier():
            self._pause(PAUSE_S)  # and leave the connection to the others
        else:
            self._accept()
