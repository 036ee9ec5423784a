"""Choose how many threads a call of the C library uses.

OpenMP ends threads when a parallel region has fewer of them than the one before, and starts new ones for the next: each
region has all threads or one. Where all would wait for each other longer than they compute, only some of them work.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import cache
from typing import Any

from cenote.utils.cpu_topology import read_nodes

ROWS_AT_ONCE = 16  # about the rows of a tile: fewer rows take as long
# multiply-adds below which a further thread gains nothing. In encoders, threads wait for each other several times in
# every layer: MiniLM-L6 with 12 tokens takes the same time with 12 and 14 threads, with AMX with 6 (14 cores of a Xeon)
MIN_WORK_OF_ENCODER = 10_000_000
MIN_WORK_OF_LINEAR = 1_000_000  # of a single layer; less is computed by one thread

_chosen: int | None = None  # by `set_num_threads` while torch was not imported


def num_threads() -> int:
    """Return the number of threads of the C library: that of torch once it is imported, whose threads it shares."""
    global _chosen
    if (torch := _imported_torch()) is None:
        return _default_num_threads() if _chosen is None else _chosen
    if _chosen is not None:
        torch.set_num_threads(_chosen)
        _chosen = None
    number: int = torch.get_num_threads()
    return number


def set_num_threads(number: int) -> None:
    """Set the number of threads of the C library, and of torch."""
    global _chosen
    if (torch := _imported_torch()) is None:
        _chosen = number
    else:
        torch.set_num_threads(number)


def count_workers(num_rows: int, work_per_row: int, min_work: int) -> int:
    """Return how many threads share rows of `work_per_row` multiply-adds, each with at least `min_work` of them."""
    rows = -(-num_rows // ROWS_AT_ONCE) * ROWS_AT_ONCE
    return max(1, min(num_threads(), rows * work_per_row // min_work))


def count_threads(work: int, min_work: int) -> int:
    """Return the threads of a region without waits: all of them, or one if there is less work than `min_work`."""
    return num_threads() if work >= min_work else 1


def _imported_torch() -> Any:
    """Return torch if it is imported, also if another thread has not finished that yet, otherwise None."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "set_num_threads") else None


@cache
def _default_num_threads() -> int:
    """Return what torch would decide: OMP_NUM_THREADS, otherwise the cores that this process may use."""
    with suppress(ValueError):
        if (number := int(os.environ.get("OMP_NUM_THREADS", "").partition(",")[0])) > 0:
            return number
    return sum(map(len, read_nodes()))
