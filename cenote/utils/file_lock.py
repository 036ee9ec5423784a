"""A lock that processes share by a file, with a limit on the wait: its holder may be stopped, or on another machine."""

from __future__ import annotations

import errno
import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def lock_file(path: Path, timeout_s: float, read_progress: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Hold the lock until the block, or this process, ends; raise TimeoutError, an OSError, if another one keeps it.

    The time begins again whenever `read_progress` returns something else: then the holder is at work.
    """
    with path.open("w") as file:  # closing it releases the lock
        progress, ends_at = read_progress(), time.monotonic() + timeout_s
        while not _try_lock(file.fileno()):
            if (current := read_progress()) != progress:
                progress, ends_at = current, time.monotonic() + timeout_s
            elif time.monotonic() >= ends_at:
                reason = f"another process has held this lock for {timeout_s:g} s without progress"
                raise TimeoutError(errno.ETIMEDOUT, reason, str(path))
            time.sleep(min(0.2, timeout_s / 20))
        yield


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
