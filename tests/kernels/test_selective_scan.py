"""The selective scan over packed sequences equals its definition, for any block size."""

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
Values: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # x, dt, A, B, C


def inputs(lengths: list[int], channels: int = 6, states: int = 4) -> tuple[Values, PackedBatch]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(sum(lengths), channels)] * 2 + [(channels, states)] + [(sum(lengths), states)] * 2
    x, dt, A, B, C = (torch.randn(shape, generator=generator) for shape in shapes)
    return (x, F.softplus(dt), -torch.exp(A), B, C), pack_sequences([[0] * length for length in lengths])


def expected_output(values: Values, lengths: list[int]) -> Tensor:
    """Compute token by token, in float64."""
    x, dt, A, B, C = (value.double() for value in values)
    out, row = [], 0
    for length in lengths:
        state = torch.zeros_like(A)
        for _ in range(length):
            state = torch.exp(dt[row, :, None] * A) * state + (dt[row] * x[row])[:, None] * B[row]
            out.append(state @ C[row])
            row += 1
    return torch.stack(out)


@pytest.mark.parametrize("block_tokens", [None, 1, 2, 5, 16, 39, 40, 100])
def test_every_token_equals_the_definition(block_tokens: int | None) -> None:
    values, batch = inputs(LENGTHS)

    ours = selective_scan(*values, batch, block_tokens=block_tokens)

    assert_close(ours.double(), expected_output(values, LENGTHS), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("block_tokens", [None, 5])
def test_a_small_state_limit_gives_the_same(block_tokens: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    values, batch = inputs(LENGTHS)
    unlimited = selective_scan(*values, batch, block_tokens=block_tokens)

    monkeypatch.setitem(module.MAX_STATE_ELEMENTS, "cpu", 2 * 6 * 4)

    assert_close(selective_scan(*values, batch, block_tokens=block_tokens), unlimited, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("block_tokens", [None, 5])
def test_a_state_does_not_cross_the_border_of_a_sequence(block_tokens: int | None) -> None:
    values, batch = inputs(LENGTHS)
    x = values[0].clone()
    x[8:48] = torch.inf  # the third sequence

    ours, expected = (
        selective_scan(x, *values[1:], batch, block_tokens=block_tokens),
        selective_scan(*values, batch, block_tokens=block_tokens),
    )

    assert not ours[8:48].isfinite().any()
    assert torch.equal(ours[:8], expected[:8]) and torch.equal(ours[48:], expected[48:])


def test_states_that_decay_at_once_or_never_stay_finite() -> None:
    (x, dt, A, B, C), batch = inputs([300])
    A = torch.tensor([-1e4, -1e-6]).repeat(3)[:, None].expand_as(A).contiguous()
    values = (x, dt, A, B, C)

    single, blocks = (selective_scan(*values, batch, block_tokens=block_tokens) for block_tokens in (None, 16))

    assert_close(single.double(), expected_output(values, [300]), atol=1e-3, rtol=1e-4)
    assert_close(blocks, single, atol=1e-3, rtol=1e-4)
