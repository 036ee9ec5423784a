"""Memory that this process shares with the processes that it starts."""

from __future__ import annotations

import os
from tempfile import TemporaryFile


def make_shared_memory(num_bytes: int) -> int:
    """Return the descriptor of an unnamed file of zeros, for `mmap`; it vanishes with the last process that has it."""
    if hasattr(os, "memfd_create"):  # Linux: needs no folder that can be written
        fd = os.memfd_create("cenote")
        os.truncate(fd, num_bytes)
        return fd
    with TemporaryFile() as file:
        file.truncate(num_bytes)
        return os.dup(file.fileno())
