"""What travels between the supervisor and the engine launcher: files of a new engine process one way, its id back."""

from __future__ import annotations

import socket
from collections.abc import Sequence

READY = b"R"  # the launcher has imported all modules
# control channel, links, heartbeat, table of the device, standard error
NUM_FILES = 5


def send_files(sock: socket.socket, fds: Sequence[int]) -> None:
    socket.send_fds(sock, [b"F"], list(fds))


def receive_files(sock: socket.socket) -> list[int]:
    """Wait for the files of the next engine process; none if the supervisor has closed the socket."""
    _, fds, _, _ = socket.recv_fds(sock, 1, NUM_FILES)
    return fds
