"""What the system grants this process: memory and CPU time of its control groups, CPUs, and open files."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import NamedTuple

CGROUP_FOLDER = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
UNLIMITED_BYTES = 2**60  # version 1 has no word for a group without a limit, but a number above this one
OPEN_MAX = 10240  # of macOS, which refuses the hard limit where that is unlimited
FILE_FOLDERS = ("/proc/self/fd", "/dev/fd")
# of memory.stat in version 2, and in version 1 with the groups below
CACHE_NAMES = frozenset(("inactive_file", "active_file"))
HIERARCHICAL_CACHE_NAMES = frozenset(("total_inactive_file", "total_active_file"))


class MemoryLimit(NamedTuple):
    """The tightest limit of memory among the control groups of this process, and the group that has it."""

    num_bytes: int
    folder: Path

    def read_use(self) -> int:
        """Return the bytes in use, without cached files, which the kernel drops before it kills a process."""
        is_v2 = (self.folder / "memory.current").exists()
        used = int((self.folder / ("memory.current" if is_v2 else "memory.usage_in_bytes")).read_text())
        if used < self.num_bytes // 2:
            return used  # the statistics cost more than all the rest
        names = CACHE_NAMES if is_v2 else HIERARCHICAL_CACHE_NAMES
        rows = (line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
        return used - sum(int(value) for name, value in rows if name in names)


def find_memory_limit(folder: Path = CGROUP_FOLDER, membership: Path = MEMBERSHIP) -> MemoryLimit | None:
    """Return the limit of this process's control groups; None if they have none, or the system has no such groups."""
    limits = []
    for group in _list_groups("memory", folder, membership):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # "max" is no limit
                if (num_bytes := int((group / name).read_text())) < UNLIMITED_BYTES:
                    limits.append(MemoryLimit(num_bytes, group))
    return min(limits, default=None)


def find_cpu_quota(folder: Path = CGROUP_FOLDER, membership: Path = MEMBERSHIP) -> float | None:
    """Return the number of CPUs whose time this process's control groups may use; None if they have no quota."""
    counts = []
    for group in _list_groups("cpu", folder, membership):
        with suppress(OSError, ValueError):
            quota, period = (group / "cpu.max").read_text().split()
            counts.append(int(quota) / int(period))
        with suppress(OSError, ValueError):
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if int(quota) > 0:
                counts.append(int(quota) / int(period))
    return min(counts, default=None)


def count_cpus() -> int:
    """Return the number of CPUs that this process may keep busy: of its affinity, or of its quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = find_cpu_quota()
    return count if quota is None else min(count, max(1, ceil(quota)))


def count_memory_bytes() -> int:
    """Return the memory that this process may use: of its control group, or of the machine."""
    limit = find_memory_limit()
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return machine if limit is None else min(machine, limit.num_bytes)


def _list_groups(controller: str, folder: Path, membership: Path) -> Iterator[Path]:
    """Yield the folders of this process's control groups, each followed by those above it.

    Version 1 has a tree for each controller. A container may not see the groups by which the kernel names its own, but
    then the top of what it sees is its own.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = folder / controller if controllers else folder
        group = top / path.lstrip("/")
        if ".." not in group.parts:
            yield from (parent for parent in (group, *group.parents) if parent.is_relative_to(top) and parent != top)
        yield top


def raise_file_limit() -> None:
    """Let this process and its children open as many files as the system allows without privileges."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (hard, OPEN_MAX):
        with suppress(OSError, ValueError):
            if soft != resource.RLIM_INFINITY and (limit > soft or limit == resource.RLIM_INFINITY):
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            return


def get_file_limit() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return UNLIMITED_BYTES if soft == resource.RLIM_INFINITY else soft


def count_open_files() -> int:
    """Return the number of open files of this process; 0 if the system does not tell."""
    for name in FILE_FOLDERS:
        with suppress(OSError):
            return os.stat(name).st_size or len(os.listdir(name)) - 1  # newer kernels give it as the size
    return 0
