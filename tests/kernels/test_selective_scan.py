"""The recurrence over packed sequences equals its definition, however it is cut into pieces."""

from __future__ import annotations

from typing import TypeAlias

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from cenote.kernels import selective_scan as module
from cenote.kernels.selective_scan import selective_scan
from cenote.packed_batch import PackedBatch, pack_sequences

LENGTHS = [7, 1, 40, 3, 3, 77, 1]
Values: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # x, step, rate, write, read


def inputs(lengths: list[int], channels: int = 6, states: int = 4) -> tuple[Values, PackedBatch]:
    made = torch.Generator().manual_seed(0)
    shapes = [(sum(lengths), channels)] * 2 + [(channels, states)] + [(sum(lengths), states)] * 2
    x, step, rate, write, read = (torch.randn(shape, generator=made) for shape in shapes)
    return (x, F.softplus(step), -torch.exp(rate), write, read), pack_sequences([[0] * length for length in lengths])


def expected_output(values: Values, lengths: list[int]) -> Tensor:
    """Token by token, in float64."""
    x, step, rate, write, read = (value.double() for value in values)
    out, row = [], 0
    for length in lengths:
        state = torch.zeros_like(rate)
        for _ in range(length):
            state = torch.exp(step[row, :, None] * rate) * state + (step[row] * x[row])[:, None] * write[row]
            out.append(state @ read[row])
            row += 1
    return torch.stack(out)


@pytest.mark.parametrize("piece", [None, 1, 2, 5, 16, 39, 40, 100])
def test_every_token_gets_what_the_definition_says(piece: int | None) -> None:
    values, batch = inputs(LENGTHS)

    ours = selective_scan(*values, batch, block_tokens=piece)

    assert_close(ours.double(), expected_output(values, LENGTHS), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("piece", [None, 5])
def test_a_small_state_limit_gives_the_same(piece: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    values, batch = inputs(LENGTHS)
    together = selective_scan(*values, batch, block_tokens=piece)

    monkeypatch.setitem(module.MAX_STATE_ELEMENTS, "cpu", 2 * 6 * 4)

    assert_close(selective_scan(*values, batch, block_tokens=piece), together, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("piece", [None, 5])
def test_a_state_does_not_cross_the_border_of_a_sequence(piece: int | None) -> None:
    values, batch = inputs(LENGTHS)
    x = values[0].clone()
    x[8:48] = torch.inf  # the third sequence

    ours, sound = (
        selective_scan(x, *values[1:], batch, block_tokens=piece),
        selective_scan(*values, batch, block_tokens=piece),
    )

    assert not ours[8:48].isfinite().any()
    assert torch.equal(ours[:8], sound[:8]) and torch.equal(ours[48:], sound[48:])


def test_states_that_fade_at_once_or_never_stay_finite() -> None:
    (x, step, rate, write, read), batch = inputs([300])
    rate = torch.tensor([-1e4, -1e-6]).repeat(3)[:, None].expand_as(rate).contiguous()
    values = (x, step, rate, write, read)

    whole, pieces = (selective_scan(*values, batch, block_tokens=piece) for piece in (None, 16))

    assert_close(whole.double(), expected_output(values, [300]), atol=1e-3, rtol=1e-4)
    assert_close(pieces, whole, atol=1e-3, rtol=1e-4)
