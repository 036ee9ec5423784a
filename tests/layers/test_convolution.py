"""Short convolutions equal conv1d of torch on each sequence, and never mix sequences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from cenote.layers.convolution import ShortConvolution
from cenote.packed_batch import pack_sequences
from tests.tiny import randomize

LENGTHS = [5, 1, 2, 9, 1, 1, 3]
BATCH = pack_sequences([[0] * length for length in LENGTHS])


def make_layer(width: int, *, bias: bool = True, causal: bool = True) -> ShortConvolution:
    layer = ShortConvolution(6, width, bias=bias, causal=causal).requires_grad_(False)
    randomize(layer)
    return layer


def tokens() -> Tensor:
    return torch.randn(sum(LENGTHS), 6, generator=torch.Generator().manual_seed(0))


def run_each_sequence(layer: ShortConvolution, x: Tensor, *, before: int, after: int) -> Tensor:
    padded = [F.pad(sequence.T, (before, after)) for sequence in torch.split(x, LENGTHS)]
    return torch.cat([F.conv1d(sequence, layer.weight, layer.bias, groups=6).T for sequence in padded])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 12])
def test_a_causal_convolution_covers_a_token_and_preceding_ones(width: int, bias: bool) -> None:
    layer, x = make_layer(width, bias=bias), tokens()

    assert_close(layer(x, BATCH), run_each_sequence(layer, x, before=width - 1, after=0), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("width", [1, 3, 5])
def test_a_centred_convolution_covers_both_sides(width: int) -> None:
    layer, x = make_layer(width, causal=False), tokens()

    assert_close(
        layer(x, BATCH), run_each_sequence(layer, x, before=width // 2, after=width // 2), atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize("causal", [False, True])
def test_an_infinity_in_one_sequence_stays_there(causal: bool) -> None:
    layer, x = make_layer(3, causal=causal), tokens()
    broken = x.clone()
    broken[8:17] = torch.inf  # the fourth sequence

    ours, expected = layer(broken, BATCH), layer(x, BATCH)

    assert torch.equal(ours[:8], expected[:8]) and torch.equal(ours[17:], expected[17:])


def test_sums_are_rounded_once_in_bfloat16() -> None:
    layer, x = make_layer(4).bfloat16(), tokens().bfloat16()

    exact = make_layer(4)
    exact.load_state_dict(layer.state_dict())

    assert torch.equal(layer(x, BATCH), exact(x.float(), BATCH).bfloat16())
