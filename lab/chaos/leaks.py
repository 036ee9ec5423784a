"""What a server must not keep: memory, descriptors, shared memory, processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.chaos.expectations import MAX_FILE_GROWTH, MAX_MEMORY_GROWTH_MIB
from lab.chaos.processes import ProcessSize

SHARED_MEMORY_FOLDER = Path("/dev/shm")

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
