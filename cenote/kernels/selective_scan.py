"""Selective scan of Mamba over a packed batch: all sequences, or blocks of them, advance one token per step."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from cenote.packed_batch import PackedBatch

MIN_BLOCK_TOKENS = 32
# maximum number of state elements that are updated per step; on a CPU as many as fit in its caches
MAX_STATE_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 26}


class ScanBlock(NamedTuple):
    """Consecutive tokens of one sequence."""

    start: int
    length: int
    previous: int | None  # index of the preceding block of the same sequence; None for the first


class ScanInputs(NamedTuple):
    """Per token, starting from h = 0: h = exp(dt * A) * h + dt * x * B; y = C . h."""

    dt: Tensor  # [tokens, channels]
    dt_x: Tensor  # [tokens, channels], dt * x
    A: Tensor  # [channels, states], negative
    B: Tensor  # [tokens, states]
    C: Tensor  # [tokens, states]


def selective_scan(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, batch: PackedBatch, *, block_tokens: int | None = None
) -> Tensor:
    """Return y [tokens, channels]; all tensors are float32.

    Sequences longer than block_tokens are split into blocks that run in parallel, at the cost of a second pass.
    """
    scan = ScanInputs(dt, dt * x, A, B, C)
    if block_tokens is None:
        # on a GPU the number of steps dominates: two passes over a block and one over the blocks of a sequence
        block_tokens = max(MIN_BLOCK_TOKENS, math.isqrt(batch.max_seqlen // 2)) if x.is_cuda else batch.max_seqlen
    blocks = _split_blocks(batch, block_tokens)
    states = _initial_states(scan, blocks) if any(block.previous is not None for block in blocks) else None
    out = torch.empty_like(x)
    for indices in _group_blocks(blocks, A):
        state = A.new_zeros(len(indices), *A.shape) if states is None else states[indices]
        for rows, active in _scan_steps([blocks[index] for index in indices], x.device):
            out[rows] = (_advance_state(scan, state[:active], rows) @ C[rows, :, None]).squeeze(-1)
    return out


def _split_blocks(batch: PackedBatch, block_tokens: int) -> list[ScanBlock]:
    blocks: list[ScanBlock] = []
    for first, length in zip(batch.cu_seqlens_cpu, batch.seq_lens_cpu, strict=False):
        for done in range(0, length, block_tokens):
            blocks.append(ScanBlock(first + done, min(block_tokens, length - done), len(blocks) - 1 if done else None))
    return blocks


def _initial_states(scan: ScanInputs, blocks: list[ScanBlock]) -> Tensor:
    """Return the initial state of every block [blocks, channels, states], from the final states when starting at 0."""
    final = scan.A.new_zeros(len(blocks), *scan.A.shape)
    dt_sums = scan.A.new_zeros(len(blocks), scan.A.shape[0])
    for indices in _group_blocks(blocks, scan.A):
        state, dt_sum = final[indices], dt_sums[indices]
        for rows, active in _scan_steps([blocks[index] for index in indices], state.device):
            _advance_state(scan, state[:active], rows)
            dt_sum[:active] += scan.dt[rows]
        final[indices], dt_sums[indices] = state, dt_sum
    initial = torch.zeros_like(final)
    for indices in _blocks_by_order(blocks):
        previous = torch.tensor([blocks[index].previous for index in indices], device=final.device)
        decayed = torch.exp(dt_sums[previous, :, None] * scan.A) * initial[previous]
        initial[torch.tensor(indices, device=final.device)] = final[previous] + decayed
    return initial


def _blocks_by_order(blocks: list[ScanBlock]) -> list[list[int]]:
    """Return the indices of the second blocks of all sequences, then of the third, and so on."""
    ranks: list[int] = []
    for block in blocks:
        ranks.append(0 if block.previous is None else ranks[block.previous] + 1)
    return [[index for index, rank in enumerate(ranks) if rank == wave] for wave in range(1, max(ranks) + 1)]


def _group_blocks(blocks: list[ScanBlock], A: Tensor) -> list[list[int]]:
    """Return indices of blocks, longest first, in groups of at most MAX_STATE_ELEMENTS state elements."""
    max_blocks = max(1, MAX_STATE_ELEMENTS[A.device.type] // A.numel())
    indices = sorted(range(len(blocks)), key=lambda index: -blocks[index].length)
    return [indices[first : first + max_blocks] for first in range(0, len(indices), max_blocks)]


def _scan_steps(blocks: list[ScanBlock], device: torch.device) -> list[tuple[Tensor, int]]:
    """Return the tokens of every step and their number; blocks come longest first, so the finished ones are last."""
    first = torch.tensor([block.start for block in blocks], device=device)
    steps, active = [], len(blocks)
    for done in range(blocks[0].length):
        while blocks[active - 1].length <= done:
            active -= 1
        steps.append((first[:active] + done, active))
    return steps


def _advance_state(scan: ScanInputs, state: Tensor, rows: Tensor) -> Tensor:
    state *= torch.exp(scan.dt[rows, :, None] * scan.A)
    return state.addcmul_(scan.dt_x[rows, :, None], scan.B[rows, None])
