"""Convert arrays between dtypes, also from bfloat16 and fp8 as fast as memory allows."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from cenote.utils.arrays import Array

FLOAT32 = np.dtype(np.float32)
FP8_PREFIX = "float8_"


def convert(array: Array, dtype: DTypeLike) -> Array:
    """Return an array in another dtype; itself if it has that dtype."""
    if array.dtype == dtype:
        return array
    converted = np.empty(array.shape, dtype)
    convert_into(converted, array)
    return converted


def to_float32(array: Array) -> Array:
    return convert(array, FLOAT32)


def convert_into(out: Array, array: Array) -> None:
    """Write an array into one of the same shape and any dtype."""
    name = array.dtype.name
    if out.dtype == FLOAT32 and name == "bfloat16":
        # the upper half of a float32; the loops of ml_dtypes convert one element at a time
        np.left_shift(array.view(np.uint16), 16, out=out.view(np.uint32), dtype=np.uint32)
    elif out.dtype == FLOAT32 and name.startswith(FP8_PREFIX):
        # every index is valid; the mode lets numpy write to `out` without a copy
        np.take(_list_values(array.dtype), array.view(np.uint8), out=out, mode="clip")
    else:
        out[...] = array


@cache
def _list_values(dtype: np.dtype[Any]) -> Array:
    """Return the value of each of the 256 bytes in a dtype of one byte."""
    values: Array = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    return values
