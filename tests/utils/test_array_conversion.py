"""Arrays are converted between dtypes as torch does it, bit by bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from cenote.layers.torch_dtypes import to_tensor
from cenote.utils.array_conversion import convert, scale, to_float32

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16, np.float64)


def every_value(dtype: Any) -> np.ndarray[Any, Any]:
    """Return every number of a dtype of one or two bytes, as a matrix."""
    bits = np.uint8 if np.dtype(dtype).itemsize == 1 else np.uint16
    return np.arange(np.iinfo(bits).max + 1, dtype=bits).view(dtype).reshape(-1, 16)


@pytest.mark.parametrize(
    "dtype",
    [ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu],
)
@pytest.mark.parametrize("is_transposed", [False, True])
def test_every_number_is_the_same_in_float32(dtype: Any, is_transposed: bool) -> None:
    stored = every_value(dtype).T if is_transposed else every_value(dtype)

    found = to_float32(stored)

    expected = to_tensor(stored).float().numpy()
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_numbers_are_rounded_as_torch_does(source: Any, target: Any) -> None:
    numbers = np.random.default_rng(0).standard_normal((64, 65)) * 10.0 ** np.arange(-8, 57)
    with np.errstate(over="ignore"):
        stored = numbers.astype(source)

    found = convert(stored, target)

    expected = to_tensor(stored).to(to_tensor(np.empty(0, target)).dtype)
    assert torch.equal(to_tensor(found), expected)


def test_an_array_of_the_right_dtype_is_not_copied() -> None:
    array = np.ones(3, ml_dtypes.bfloat16)

    assert convert(array, ml_dtypes.bfloat16) is array


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_factor_keeps_the_dtype(dtype: Any) -> None:
    array = np.linspace(-3, 3, 50).astype(dtype)

    found = scale(array, 1 / 3)

    assert found.dtype == dtype
    torch.testing.assert_close(to_tensor(found), to_tensor(array) * (1 / 3), rtol=1e-7, atol=0)
