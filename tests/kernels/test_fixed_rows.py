"""Products in blocks of fixed numbers of rows, and elementwise functions without scalar remainders."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cenote.kernels.activations import ACTIVATIONS
from cenote.kernels.fixed_rows import FixedRowsLinear, apply_elementwise, find_equal_sizes, split_rows
from cenote.layers.linear import Linear
from tests.tiny import randomize

SIZES = (64, 32, 16)


@pytest.mark.parametrize(
    ("num_rows", "blocks"),
    [
        (0, []),
        (1, [16]),
        (16, [16]),
        (17, [32]),
        (40, [32, 16]),
        (64, [64]),
        (130, [64, 64, 16]),
        (175, [64, 64, 32, 16]),
    ],
)
def test_rows_are_split_into_the_largest_blocks(num_rows: int, blocks: list[int]) -> None:
    assert split_rows(num_rows, SIZES) == blocks


def make_rows(count: int) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(0))


def test_a_block_size_with_other_results_is_not_used() -> None:
    def multiply(rows: Tensor) -> Tensor:
        return rows * (1.000001 if len(rows) in (48, 256) else 1.0)

    sizes = find_equal_sizes(multiply, make_rows, 16, 512)

    assert sizes == (512, 128, 112, 96, 80, 64, 32, 16)


def test_rows_are_computed_one_by_one_if_their_position_matters() -> None:
    def multiply(rows: Tensor) -> Tensor:
        return rows + torch.arange(len(rows))[:, None] * 1e-3

    assert find_equal_sizes(multiply, make_rows, 16, 512) == (1,)


@pytest.mark.parametrize("activation", [None, "gelu", "tanh"])
@pytest.mark.parametrize("bias", [True, False])
def test_the_product_is_that_of_the_linear_layer(bias: bool, activation: str | None) -> None:
    linear = Linear(48, 37, bias=bias, activation=activation).requires_grad_(False)
    randomize(linear)
    x = torch.randn(5, 19, 48)

    torch.testing.assert_close(FixedRowsLinear(linear, 48, {})(x), linear(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("num_rows", [1, 2, 8, 9, 16, 100, 511, 1500])
def test_a_row_has_the_same_bits_at_every_position_of_every_number_of_rows(num_rows: int) -> None:
    linear = Linear(96, 80, bias=True, activation="gelu").requires_grad_(False)
    randomize(linear)
    fixed = FixedRowsLinear(linear, 96, {})
    row = torch.randn(1, 96)
    expected = fixed(row)
    for position in {0, num_rows // 2, num_rows - 1}:
        x = torch.randn(num_rows, 96)
        x[position] = row[0]
        assert fixed(x)[position].equal(expected[0])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_have_the_same_bits_at_every_position(name: str) -> None:
    function, value = ACTIVATIONS[name], torch.randn(7, generator=torch.Generator().manual_seed(0)) * 2
    expected = apply_elementwise(function, value)
    for size in (7, 64, 2047, 70_001):
        for start in {0, (size - 7) // 3, size - 7}:
            x = torch.zeros(size)
            x[start : start + 7] = value
            assert apply_elementwise(function, x)[start : start + 7].equal(expected)


def test_elementwise_functions_keep_the_shape_and_all_values() -> None:
    x = torch.randn(3, 501, 50)

    torch.testing.assert_close(apply_elementwise(F.gelu, x), F.gelu(x))
