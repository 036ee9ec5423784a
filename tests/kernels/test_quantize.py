"""Weights are quantized to int8 as torch would do it."""

from __future__ import annotations

import numpy as np
import torch

from cenote.kernels.cpu import quantize
from cenote.kernels.cpu.quantize import absolute_max, quantize_int8, smooth_scales
from cenote.utils.arrays import Array
from cenote.utils.dtypes import to_numpy_dtype

RANDOM = np.random.default_rng(0)


def make_weight(outputs: int, inputs: int) -> Array:
    weight = RANDOM.standard_normal((outputs, inputs)).astype(np.float32)
    weight[outputs // 2] = 0
    return weight


def test_the_largest_weight_of_a_row_becomes_127_and_zeros_stay_zeros() -> None:
    values, scales = quantize_int8(np.array([[1, -2, 4], [0, 0, 0]], np.float32))

    assert values.tolist() == [[32, -64, 127], [0, 0, 0]]
    assert scales.tolist() == [np.float32(4) / np.float32(127), 0]


def test_int8_weights_have_the_bits_that_torch_computes() -> None:
    weight, scales = make_weight(301, 700), RANDOM.random(700, np.float32) + 0.5
    exact = torch.from_numpy(weight) / torch.from_numpy(scales)
    expected_scales = exact.abs().amax(dim=1) / 127
    inverse = torch.where(expected_scales > 0, 1 / expected_scales, 0)
    expected = (exact * inverse[:, None]).round().to(torch.int8)

    quantized = quantize_int8(weight, scales)

    assert weight.size > 2 * quantize.BLOCK_ELEMENTS
    assert np.array_equal(quantized.values, expected.numpy())
    assert np.array_equal(quantized.scales, expected_scales.numpy())


def test_bfloat16_weights_are_quantized_like_their_float32_values() -> None:
    weight = make_weight(5, 33).astype(to_numpy_dtype("bfloat16"))

    found, expected = quantize_int8(weight), quantize_int8(weight.astype(np.float32))

    assert np.array_equal(found.values, expected.values) and np.array_equal(found.scales, expected.scales)


def test_the_largest_weight_of_an_input_is_found_in_all_pieces() -> None:
    pieces = [make_weight(4, 6), make_weight(300, 6)]

    assert np.array_equal(absolute_max(pieces), np.abs(np.concatenate(pieces)).max(axis=0))


def test_smooth_scales_divide_the_range_between_weights_and_inputs() -> None:
    scales = smooth_scales(np.array([1, 1, 4], np.float32), np.array([1, 16, 1], np.float32))

    assert np.allclose(scales / scales[0], [1, 0.25, 2])
    assert np.isclose(np.log(scales).mean(), 0, atol=1e-6)
