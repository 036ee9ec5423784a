"""Mamba's recurrence over a packed batch: many sequences, or pieces of them, take each step together."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from cenote.packed_batch import PackedBatch

MIN_PIECE = 32
# numbers of state that take a step together: on a CPU as many as its caches hold
AT_ONCE = {"cpu": 1 << 18, "cuda": 1 << 26}


class Piece(NamedTuple):
    """Neighbouring tokens of one sequence."""

    start: int
    length: int
    before: int | None  # the number of the piece before it in the same sequence


class Scan(NamedTuple):
    """h = exp(step * rate) * h + step * x * write, from 0 at the start of a sequence; y = read . h, token by token"""

    step: Tensor  # [tokens, channels]
    taken: Tensor  # [tokens, channels], step * x
    rate: Tensor  # [channels, states], negative
    write: Tensor  # [tokens, states]
    read: Tensor  # [tokens, states]


def selective_scan(
    x: Tensor, step: Tensor, rate: Tensor, write: Tensor, read: Tensor, batch: PackedBatch, *, piece: int | None = None
) -> Tensor:
    """[tokens, channels], all in float32. Pieces of that many tokens run side by side, at the price of a second run."""
    scan = Scan(step, step * x, rate, write, read)
    if piece is None:
        # a GPU's time goes into the number of steps: two runs through a piece and one over all of a sequence
        piece = max(MIN_PIECE, math.isqrt(batch.max_length // 2)) if x.is_cuda else batch.max_length
    pieces = _pieces(batch, piece)
    states = _first_states(scan, pieces) if any(each.before is not None for each in pieces) else None
    out = torch.empty_like(x)
    for numbers in _groups(pieces, rate):
        state = rate.new_zeros(len(numbers), *rate.shape) if states is None else states[numbers]
        for rows, active in _steps([pieces[n] for n in numbers], x.device):
            out[rows] = (_advance(scan, state[:active], rows) @ read[rows, :, None]).squeeze(-1)
    return out


def _pieces(batch: PackedBatch, longest: int) -> list[Piece]:
    pieces: list[Piece] = []
    for first, length in zip(batch.host_offsets, batch.host_lengths, strict=False):
        for done in range(0, length, longest):
            pieces.append(Piece(first + done, min(longest, length - done), len(pieces) - 1 if done else None))
    return pieces


def _first_states(scan: Scan, pieces: list[Piece]) -> Tensor:
    """The state before every piece, [pieces, channels, states]: from what each piece alone makes of 0."""
    ends = scan.rate.new_zeros(len(pieces), *scan.rate.shape)
    passed = scan.rate.new_zeros(len(pieces), scan.rate.shape[0])
    for numbers in _groups(pieces, scan.rate):
        state, time = ends[numbers], passed[numbers]
        for rows, active in _steps([pieces[n] for n in numbers], state.device):
            _advance(scan, state[:active], rows)
            time[:active] += scan.step[rows]
        ends[numbers], passed[numbers] = state, time
    starts = torch.zeros_like(ends)
    for numbers in _rounds(pieces):
        before = torch.tensor([pieces[n].before for n in numbers], device=ends.device)
        faded = torch.exp(passed[before, :, None] * scan.rate) * starts[before]
        starts[torch.tensor(numbers, device=ends.device)] = ends[before] + faded
    return starts


def _rounds(pieces: list[Piece]) -> list[list[int]]:
    """The second pieces of all sequences, then the third, and so on."""
    place: list[int] = []
    for each in pieces:
        place.append(0 if each.before is None else place[each.before] + 1)
    return [[n for n, at in enumerate(place) if at == turn] for turn in range(1, max(place) + 1)]


def _groups(pieces: list[Piece], rate: Tensor) -> list[list[int]]:
    """Numbers of pieces, longest first, as many together as memory is meant for."""
    most = max(1, AT_ONCE[rate.device.type] // rate.numel())
    numbers = sorted(range(len(pieces)), key=lambda n: -pieces[n].length)
    return [numbers[first : first + most] for first in range(0, len(numbers), most)]


def _steps(pieces: list[Piece], device: torch.device) -> list[tuple[Tensor, int]]:
    """For every step the tokens that take it, and how many: the pieces that are over drop out from the end."""
    first = torch.tensor([each.start for each in pieces], device=device)
    steps, active = [], len(pieces)
    for done in range(pieces[0].length):
        while pieces[active - 1].length <= done:
            active -= 1
        steps.append((first[:active] + done, active))
    return steps


def _advance(scan: Scan, state: Tensor, rows: Tensor) -> Tensor:
    state *= torch.exp(scan.step[rows, :, None] * scan.rate)
    return state.addcmul_(scan.taken[rows, :, None], scan.write[rows, None])
