"""CPU time of the processes of a server, read from /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
# module of a child process -> what it does
ROLES = {
    "cenote.api.front_ends.front_end": "front-end",
    "cenote.api.engine_process": "engine",
    "cenote.api.engine_launcher": "engine launcher",
}


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU seconds since the start of a process."""

    role: str
    total_s: float
    main_thread_s: float  # that of the event loop


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """CPU that a process used during a measurement."""

    role: str
    pid: int
    cores: float
    main_thread_cores: float  # that of the event loop; near 1 it is full
    us_per_request: float


def read_cpu_times(root_pid: int) -> dict[int, CpuTimes]:
    """Return the CPU times of a server and all its descendants by process id; empty where there is no /proc."""
    parents = _read_parents()
    pids = [root_pid] if root_pid in parents else []
    for pid in pids:  # grows while it is read: the descendants
        pids += [child for child, parent in parents.items() if parent == pid]
    roles = {pid: _read_role(pid) for pid in pids[1:]}
    root_role = "supervisor" if "engine" in roles.values() else "server"  # --in-process-engine
    times = {}
    for pid in pids:
        role = root_role if pid == root_pid else roles[pid]
        with suppress(OSError):  # it has exited
            seconds = [_read_seconds(f"{pid}/{name}") for name in ("stat", f"task/{pid}/stat")]
            times[pid] = CpuTimes(role, *seconds)
    return times


def compute_usage(
    before: dict[int, CpuTimes], after: dict[int, CpuTimes], seconds: float, num_requests: int
) -> list[ProcessUsage]:
    """Return the CPU use of the processes that ran all the time."""
    usage = []
    for pid in before.keys() & after.keys():
        total_s = after[pid].total_s - before[pid].total_s
        main_s = after[pid].main_thread_s - before[pid].main_thread_s
        us_per_request = 1e6 * total_s / max(1, num_requests)
        usage.append(ProcessUsage(after[pid].role, pid, total_s / seconds, main_s / seconds, us_per_request))
    return sorted(usage, key=lambda process: process.pid)


def _read_parents() -> dict[int, int]:
    """Return the parent of every process."""
    parents = {}
    if PROC.is_dir():
        for entry in PROC.iterdir():
            if entry.name.isdecimal():
                with suppress(OSError):
                    parents[int(entry.name)] = int(read_stat(f"{entry.name}/stat")[1])
    return parents


def _read_role(pid: int) -> str:
    return next((ROLES[word] for word in read_command(pid) if word in ROLES), "other")


def read_command(pid: int) -> list[str]:
    """Return the words of the command line of a process; empty if it has exited."""
    with suppress(OSError):
        return (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    return []


def _read_seconds(path: str) -> float:
    fields = read_stat(path)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user and system time


def read_stat(path: str) -> list[str]:
    """Return the fields of a stat file in /proc from the state on; the name before it may contain spaces."""
    return (PROC / path).read_text(errors="replace").rpartition(")")[2].split()
