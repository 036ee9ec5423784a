"""Sum of the hidden states of each sequence in Triton, in float32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 16, 256


def sum_by_sequence(states: Tensor, cu_seqlens: Tensor, num_unpooled: Tensor | None) -> Tensor:
    """[tokens, width] -> [sequences, width], without the first `num_unpooled` tokens of each."""
    width, size = states.shape[-1], cu_seqlens.shape[0] - 1
    sums = torch.empty(size, width, dtype=torch.float32, device=states.device)
    grid = (size * triton.cdiv(width, COLUMNS),)
    _segment_sum_kernel[grid](
        states, cu_seqlens, num_unpooled, sums, states.stride(0), width, ROWS, COLUMNS, num_warps=4
    )
    return sums


@triton.jit(do_not_specialize=["stride"])
def _segment_sum_kernel(
    States, CuSeqlens, NumUnpooled, Sums, stride, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    parts = tl.cdiv(WIDTH, COLUMNS)
    sequence = tl.program_id(0).to(tl.int64) // parts
    column = tl.program_id(0) % parts * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    start, end = tl.load(CuSeqlens + sequence), tl.load(CuSeqlens + sequence + 1)
    if NumUnpooled is not None:
        start += tl.load(NumUnpooled + sequence)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)
        mask = (row < end)[:, None] & inside[None, :]
        total += tl.load(States + row[:, None] * stride + column[None, :], mask=mask, other=0.0).to(tl.float32)
    tl.store(Sums + sequence * WIDTH + column, tl.sum(total, axis=0), mask=inside)
