"""The processes of a server, read from /proc, and what they must not keep: memory, descriptors, shared memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cenote.explain.process_cpu import PROC, ROLES, read_command, read_stat
from lab.chaos.expectations import MAX_FILE_GROWTH, MAX_MEMORY_GROWTH_MIB

ESTABLISHED = "01"  # state of a connection in /proc/net/tcp
STOPPED = "T"  # state of a process in its stat file
POLL_S = 0.001
SHARED_MEMORY_FOLDER = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class ProcessSize:
    """What a process holds."""

    name: str  # of its Python module
    memory_mib: float  # pages that several processes share count for each in part
    num_files: int
    num_shared_memory_files: int


def find_group(group_id: int) -> list[int]:
    """Return the processes of a process group that have not exited."""
    pids = []
    for entry in PROC.iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                fields = read_stat(f"{entry.name}/stat")
                if int(fields[2]) == group_id and fields[0] != "Z":
                    pids.append(int(entry.name))
    return sorted(pids)


def find_engine(group_id: int) -> int | None:
    return next(iter(_with_role(group_id, "engine")), None)


def find_front_ends(group_id: int) -> list[int]:
    """Return the front-end processes; the supervisor if it contains the only front-end."""
    return _with_role(group_id, "front-end") or [group_id]


def find_launchers(group_id: int) -> list[int]:
    """Return the process that forks engines, if there is one; it is started when the first engine is replaced."""
    return _with_role(group_id, "engine launcher")


def _with_role(group_id: int, role: str) -> list[int]:
    return [pid for pid in find_group(group_id) if any(ROLES.get(word) == role for word in read_command(pid))]


async def wait_until_stopped(pid: int) -> None:
    """Wait for SIGSTOP to take effect: the other threads of the process run on for a moment."""
    while read_stat(f"{pid}/stat")[0] != STOPPED:
        await asyncio.sleep(POLL_S)


def read_size(pid: int) -> ProcessSize:
    links = read_links(pid)
    return ProcessSize(
        read_name(pid), read_memory(pid)["Pss"], len(links), sum(link.startswith("/memfd:") for link in links)
    )


def read_shared_size(pid: int) -> ProcessSize:
    """Return the part of the memory that other processes share, which the others would have alone without this one."""
    memory = read_memory(pid)
    return ProcessSize(read_name(pid), memory["Pss"] - memory["Private_Clean"] - memory["Private_Dirty"], 0, 0)


def read_name(pid: int) -> str:
    """Return the module that a process runs."""
    return next((word.rpartition(".")[2] for word in read_command(pid) if word.startswith("cenote")), "another")


def read_memory(pid: int) -> dict[str, float]:
    """Return the sums over all mappings of a process, in MiB."""
    lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()[1:]
    return {name: int(value.split()[0]) / 1024 for name, _, value in (line.partition(":") for line in lines)}


def read_links(pid: int) -> list[str]:
    """Return the targets of the open descriptors."""
    links = []
    for link in (PROC / str(pid) / "fd").iterdir():
        with suppress(OSError):  # closed in the meantime
            links.append(os.readlink(link))
    return links


def find_client_ports(pid: int) -> set[int]:
    """Return the ports at the other end of all established TCP connections over IPv4 of a process."""
    sockets = set(read_links(pid))
    ports = set()
    for line in (PROC / str(pid) / "net" / "tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == ESTABLISHED and f"socket:[{fields[9]}]" in sockets:
            ports.add(int(fields[2].rpartition(":")[2], 16))
    return ports


Sizes = Mapping[int, ProcessSize]


@dataclass(frozen=True, slots=True)
class Holdings:
    """What all processes of a server hold together while no client is connected."""

    num_processes: int
    memory_mib: float
    num_files: int
    num_shared_memory_files: int
    parts: str = ""  # the memory of each process

    @classmethod
    def of(cls, sizes: Sizes) -> Holdings:
        return cls(
            sum(size.num_files > 0 for size in sizes.values()),
            sum(size.memory_mib for size in sizes.values()),
            sum(size.num_files for size in sizes.values()),
            sum(size.num_shared_memory_files for size in sizes.values()),
            ", ".join(f"{size.name} {size.memory_mib:.0f}" for size in sizes.values()),
        )

    def __str__(self) -> str:
        counts = f"{self.memory_mib:.0f} MiB and {self.num_files} descriptors in {self.num_processes} processes"
        return f"{counts} ({self.parts})"


def find_leaks(before: Holdings, after: Holdings) -> list[str]:
    """Compare what a warm, quiet server holds with what it holds after the load."""
    limits = {
        "memory_mib": MAX_MEMORY_GROWTH_MIB,
        "num_files": MAX_FILE_GROWTH,
        "num_shared_memory_files": 0,
        "num_processes": 0,
    }
    return [
        f"{name} is {getattr(after, name):.0f} after the load and was {getattr(before, name):.0f} before it"
        for name, limit in limits.items()
        if getattr(after, name) - getattr(before, name) > limit
    ]


def list_shared_memory() -> set[str]:
    """Return the names of shared memory segments of the machine; empty where there is no such folder."""
    return {path.name for path in SHARED_MEMORY_FOLDER.iterdir()} if SHARED_MEMORY_FOLDER.is_dir() else set()
