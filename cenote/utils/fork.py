"""Fork a process whose parent is not the process that forks it, and know the id of this process after forks."""

from __future__ import annotations

import os
import struct
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

PROCESS_ID = struct.Struct("<q")  # 0: a process could not be forked
POLL_S = 0.0005

_process_id = os.getpid()


def get_process_id() -> int:
    """Return `os.getpid()` without the system call, which takes as long as the checks of a request with one text."""
    return _process_id


def _update_process_id() -> None:
    global _process_id
    _process_id = os.getpid()


os.register_at_fork(after_in_child=_update_process_id)


def fork_grandchild(run: Callable[[], NoReturn]) -> int:
    """Run a function in a process that is a child of this process's parent; return its id, 0 if there is none.

    The process is forked by one that exits, and the kernel gives it to the closest ancestor that has made itself a
    child subreaper: the parent of this process has to be one until this function returns.
    """
    parent = os.getppid()
    reader, writer = os.pipe()
    with suppress(OSError):  # the limit of processes is reached, or memory is short
        intermediate = os.fork()
        if not intermediate:
            _fork_and_exit(run, parent, reader, writer)
        os.waitpid(intermediate, 0)
    os.close(writer)
    reply = os.read(reader, PROCESS_ID.size)
    os.close(reader)
    return int(PROCESS_ID.unpack(reply)[0]) if reply else 0


def _fork_and_exit(run: Callable[[], NoReturn], parent: int, reader: int, writer: int) -> NoReturn:
    try:
        intermediate = os.getpid()
        pid = os.fork()
        if pid:
            os.write(writer, PROCESS_ID.pack(pid))
            os._exit(0)
        os.close(reader)
        os.close(writer)
        while os.getppid() == intermediate:
            time.sleep(POLL_S)
        if os.getppid() == parent:
            run()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)  # nothing of the process that was forked may run here
