"""How many threads share a piece of work: others would wait for each other longer than they compute."""

from __future__ import annotations

import torch

ROWS_AT_ONCE = 16  # about the rows of a tile: fewer rows take as long
# multiply-adds below which a further thread gains nothing. In encoders, threads wait for each other several times in
# every layer: MiniLM-L6 with 12 tokens takes the least time with 12 to 14 threads, with AMX with 6 to 8 (14 cores of a
# Xeon)
MIN_WORK_OF_LINEAR, MIN_WORK_OF_ENCODER, MIN_WORK_OF_AMX_ENCODER = 1_000_000, 10_000_000, 20_000_000


def count_threads(num_rows: int, work_per_row: int, min_work: int) -> int:
    """Return the threads for rows of `work_per_row` multiply-adds, each with at least `min_work` of them."""
    rows = -(-num_rows // ROWS_AT_ONCE) * ROWS_AT_ONCE
    return max(1, min(torch.get_num_threads(), rows * work_per_row // min_work))
