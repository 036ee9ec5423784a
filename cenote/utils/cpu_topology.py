"""Divide the cores of this machine among processes: whole NUMA nodes first, hardware threads of a core together."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

SYSTEM_FOLDER = Path("/sys/devices/system")

T = TypeVar("T")
Core = tuple[int, ...]  # the CPUs (hardware threads) of a core


class CpuShare(NamedTuple):
    """The part of the machine that one process uses."""

    cpus: tuple[int, ...]
    num_cores: int


def read_nodes(allowed: Collection[int] | None = None, folder: Path = SYSTEM_FOLDER) -> list[list[Core]]:
    """Return the cores of every NUMA node that this process may use; one node if the system does not tell."""
    cpus = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
    nodes, remaining = [], set(cpus)
    for path in sorted(folder.glob("node/node[0-9]*/cpulist"), key=lambda path: int(path.parent.name[4:])):
        if members := remaining & set(parse_cpu_list(path.read_text())):
            nodes.append(_group_by_core(members, folder))
            remaining -= members
    if remaining:
        nodes.append(_group_by_core(remaining, folder))
    return nodes


def divide_cores(nodes: Sequence[Sequence[Core]], num_parts: int) -> list[CpuShare]:
    """Divide the cores into disjoint parts; there must be at least as many cores as parts.

    With as many parts as nodes or more, no part has cores of two nodes; with fewer, parts are whole nodes.
    """
    if num_parts < len(nodes):
        groups = _divide(nodes, num_parts)
        return [_make_share([core for node in group for core in node]) for group in groups]
    counts = [1] * len(nodes)
    for _ in range(num_parts - len(nodes)):  # the next part goes to the node with the most cores for each of its parts
        index = max(range(len(nodes)), key=lambda index: len(nodes[index]) / (counts[index] + 1))
        counts[index] += 1
    return [_make_share(part) for node, count in zip(nodes, counts, strict=True) for part in _divide(node, count)]


def parse_cpu_list(text: str) -> list[int]:
    """Parse a list of the kernel, such as 0-3,8."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def _group_by_core(cpus: Collection[int], folder: Path) -> list[Core]:
    cores: list[Core] = []
    remaining = set(cpus)
    for cpu in sorted(cpus):
        if cpu in remaining:
            siblings = remaining & {cpu, *_read_siblings(cpu, folder)}
            cores.append(tuple(sorted(siblings)))
            remaining -= siblings
    return cores


def _read_siblings(cpu: int, folder: Path) -> list[int]:
    try:
        return parse_cpu_list((folder / f"cpu/cpu{cpu}/topology/thread_siblings_list").read_text())
    except OSError:
        return []


def _divide(items: Sequence[T], num_parts: int) -> list[list[T]]:
    """Return consecutive parts whose sizes differ by one at most."""
    size, rest = divmod(len(items), num_parts)
    starts = [index * size + min(index, rest) for index in range(num_parts + 1)]
    return [list(items[start:end]) for start, end in zip(starts, starts[1:], strict=False)]


def _make_share(cores: Sequence[Core]) -> CpuShare:
    return CpuShare(tuple(sorted(cpu for core in cores for cpu in core)), len(cores))
