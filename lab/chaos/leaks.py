"""What a server must not keep: descriptors, shared memory, resident memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lab.chaos.expectations import MAX_FILE_GROWTH, MAX_RSS_GROWTH_MIB
from lab.chaos.processes import ProcessSize

SHARED_MEMORY_FOLDER = Path("/dev/shm")

Sizes = Mapping[int, ProcessSize]


def find_leaks(before: Sizes, warm: Sizes, after: Sizes) -> list[str]:
    """Compare the processes that lived all the time: files without clients, memory from the warmed-up state on."""
    problems = []
    for pid in before.keys() & warm.keys() & after.keys():
        new_files = after[pid].num_files - before[pid].num_files
        if new_files > MAX_FILE_GROWTH:
            problems.append(f"process {pid} has {new_files} more open files than before the load")
        new_memory = after[pid].num_shared_memory_files - before[pid].num_shared_memory_files
        if new_memory > 0:
            problems.append(f"process {pid} has {new_memory} more shared memory files than before the load")
        growth = after[pid].resident_mib - warm[pid].resident_mib
        if growth > MAX_RSS_GROWTH_MIB:
            problems.append(f"process {pid} grew by {growth:.0f} MiB, more than {MAX_RSS_GROWTH_MIB:.0f}")
    if len(after) > len(before):
        problems.append(f"the server has {len(after)} processes, and had {len(before)} before the load")
    return problems


def list_shared_memory() -> set[str]:
    """Return the names of shared memory segments of the machine; empty where there is no such folder."""
    return {path.name for path in SHARED_MEMORY_FOLDER.iterdir()} if SHARED_MEMORY_FOLDER.is_dir() else set()
