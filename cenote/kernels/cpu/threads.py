"""How many threads a call of the C library uses.

OpenMP ends threads when a parallel region has fewer of them than the one before, and starts new ones for the next: each
region has all threads or one. Where all would wait for each other longer than they compute, only some of them work.
"""

from __future__ import annotations

import torch

ROWS_AT_ONCE = 16  # about the rows of a tile: fewer rows take as long
# multiply-adds below which a further thread gains nothing. In encoders, threads wait for each other several times in
# every layer: MiniLM-L6 with 12 tokens takes the same time with 12 and 14 threads, with AMX with 6 (14 cores of a Xeon)
MIN_WORK_OF_ENCODER = 10_000_000
MIN_WORK_OF_LINEAR = 1_000_000  # of a single layer; less is computed by one thread


def count_workers(num_rows: int, work_per_row: int, min_work: int) -> int:
    """Return how many threads share rows of `work_per_row` multiply-adds, each with at least `min_work` of them."""
    rows = -(-num_rows // ROWS_AT_ONCE) * ROWS_AT_ONCE
    return max(1, min(torch.get_num_threads(), rows * work_per_row // min_work))


def count_threads(work: int, min_work: int) -> int:
    """Return the threads of a region without waits: all of them, or one if there is less work than `min_work`."""
    return torch.get_num_threads() if work >= min_work else 1
