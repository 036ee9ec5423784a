"""Convert arrays of 16-bit floats to float32."""

from __future__ import annotations

import numpy as np

from cenote.utils.arrays import Array


def to_float32(array: Array) -> Array:
    """Return the values in float32, exactly; the array itself if they are in float32 already."""
    if array.dtype == np.float32:
        return array
    if array.dtype.name != "bfloat16":
        return array.astype(np.float32)
    # the upper half of the bits of float32: several times as fast as the conversion of ml_dtypes
    bits = array.view(np.uint16).astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)
