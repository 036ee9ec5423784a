"""Limit the memory of processes that run: by a control group where this process may make one, else by RLIMIT_DATA."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")


@contextmanager
def limit_memory(pids: Iterable[int], num_bytes: int) -> Iterator[None]:
    """Limit the memory of processes, and of those that they start: together, or else each alone."""
    pids = list(pids)
    is_first_version = (GROUPS / "memory").is_dir()
    group = (GROUPS / "memory" if is_first_version else GROUPS) / f"cenote-test-{os.getpid()}"
    try:
        group.mkdir()
        limit = group / ("memory.limit_in_bytes" if is_first_version else "memory.max")
        limit.write_text(str(num_bytes))
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
    except OSError:
        with suppress(OSError):
            group.rmdir()
        for pid in pids:
            resource.prlimit(pid, resource.RLIMIT_DATA, (num_bytes, num_bytes))
    try:
        yield
    finally:
        with suppress(OSError):  # until its processes have exited
            group.rmdir()
