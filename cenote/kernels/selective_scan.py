"""Mamba's recurrence over a packed batch: many sequences, or pieces of them, take each step together."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from cenote.packed_batch import PackedBatch

MIN_BLOCK_TOKENS = 32
# numbers of state that take a step together: on a CPU as many as its caches hold
MAX_STATE_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 26}


class ScanBlock(NamedTuple):
    """Neighbouring tokens of one sequence."""

    start: int
    length: int
    previous: int | None  # the number of the piece before it in the same sequence


class ScanInputs(NamedTuple):
    """h = exp(step * rate) * h + step * x * write, from 0 at the start of a sequence; y = read . h, token by token"""

    dt: Tensor  # [tokens, channels]
    dt_x: Tensor  # [tokens, channels], step * x
    A: Tensor  # [channels, states], negative
    B: Tensor  # [tokens, states]
    C: Tensor  # [tokens, states]


def selective_scan(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, batch: PackedBatch, *, block_tokens: int | None = None
) -> Tensor:
    """[tokens, channels], all in float32. Pieces of that many tokens run side by side, at the price of a second run."""
    scan = ScanInputs(dt, dt * x, A, B, C)
    if block_tokens is None:
        # a GPU's time goes into the number of steps: two runs through a piece and one over all of a sequence
        block_tokens = max(MIN_BLOCK_TOKENS, math.isqrt(batch.max_seqlen // 2)) if x.is_cuda else batch.max_seqlen
    pieces = _split_blocks(batch, block_tokens)
    states = _initial_states(scan, pieces) if any(each.previous is not None for each in pieces) else None
    out = torch.empty_like(x)
    for numbers in _group_blocks(pieces, A):
        state = A.new_zeros(len(numbers), *A.shape) if states is None else states[numbers]
        for rows, active in _scan_steps([pieces[n] for n in numbers], x.device):
            out[rows] = (_advance_state(scan, state[:active], rows) @ C[rows, :, None]).squeeze(-1)
    return out


def _split_blocks(batch: PackedBatch, block_tokens: int) -> list[ScanBlock]:
    pieces: list[ScanBlock] = []
    for first, length in zip(batch.cu_seqlens_cpu, batch.seq_lens_cpu, strict=False):
        for done in range(0, length, block_tokens):
            pieces.append(ScanBlock(first + done, min(block_tokens, length - done), len(pieces) - 1 if done else None))
    return pieces


def _initial_states(scan: ScanInputs, blocks: list[ScanBlock]) -> Tensor:
    """The state before every piece, [pieces, channels, states]: from what each piece alone makes of 0."""
    ends = scan.A.new_zeros(len(blocks), *scan.A.shape)
    passed = scan.A.new_zeros(len(blocks), scan.A.shape[0])
    for numbers in _group_blocks(blocks, scan.A):
        state, time = ends[numbers], passed[numbers]
        for rows, active in _scan_steps([blocks[n] for n in numbers], state.device):
            _advance_state(scan, state[:active], rows)
            time[:active] += scan.dt[rows]
        ends[numbers], passed[numbers] = state, time
    starts = torch.zeros_like(ends)
    for numbers in _blocks_by_order(blocks):
        before = torch.tensor([blocks[n].previous for n in numbers], device=ends.device)
        faded = torch.exp(passed[before, :, None] * scan.A) * starts[before]
        starts[torch.tensor(numbers, device=ends.device)] = ends[before] + faded
    return starts


def _blocks_by_order(blocks: list[ScanBlock]) -> list[list[int]]:
    """The second pieces of all sequences, then the third, and so on."""
    place: list[int] = []
    for each in blocks:
        place.append(0 if each.previous is None else place[each.previous] + 1)
    return [[n for n, at in enumerate(place) if at == turn] for turn in range(1, max(place) + 1)]


def _group_blocks(blocks: list[ScanBlock], A: Tensor) -> list[list[int]]:
    """Numbers of pieces, longest first, as many together as memory is meant for."""
    most = max(1, MAX_STATE_ELEMENTS[A.device.type] // A.numel())
    numbers = sorted(range(len(blocks)), key=lambda n: -blocks[n].length)
    return [numbers[first : first + most] for first in range(0, len(numbers), most)]


def _scan_steps(blocks: list[ScanBlock], device: torch.device) -> list[tuple[Tensor, int]]:
    """For every step the tokens that take it, and how many: the pieces that are over drop out from the end."""
    first = torch.tensor([each.start for each in blocks], device=device)
    steps, active = [], len(blocks)
    for done in range(blocks[0].length):
        while blocks[active - 1].length <= done:
            active -= 1
        steps.append((first[:active] + done, active))
    return steps


def _advance_state(scan: ScanInputs, state: Tensor, rows: Tensor) -> Tensor:
    state *= torch.exp(scan.dt[rows, :, None] * scan.A)
    return state.addcmul_(scan.dt_x[rows, :, None], scan.B[rows, None])
