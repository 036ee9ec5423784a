"""Serialize the arrays of a result with dtype and shape; unlike pickle, loading never runs code."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"

DTYPES = tuple(np.dtype(name) for name in ("<f4", "<f2", "<f8", "<i4", "<i8"))
DTYPE_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
MAX_NDIM = 4


def serialize(arrays: Sequence[Array]) -> bytes | None:
    """Return the arrays as bytes; None if a dtype or shape is not supported."""
    headers, bodies = [struct.pack("<B", len(arrays))], []
    for array in arrays:
        if array.dtype not in DTYPE_CODES or array.ndim > MAX_NDIM:
            return None
        headers.append(struct.pack(f"<BB{array.ndim}I", DTYPE_CODES[array.dtype], array.ndim, *array.shape))
        bodies.append(array.tobytes())
    return b"".join((*headers, *bodies))


def deserialize(data: bytes) -> tuple[Array, ...]:
    """Return copies of the arrays, which callers may write into."""
    offset = 1
    shapes: list[tuple[np.dtype[Any], tuple[int, ...]]] = []
    for _ in range(data[0]):
        code, ndim = struct.unpack_from("<BB", data, offset)
        shapes.append((DTYPES[code], struct.unpack_from(f"<{ndim}I", data, offset + 2)))
        offset += 2 + 4 * ndim
    arrays = []
    for dtype, shape in shapes:
        count = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(data, dtype, count, offset).reshape(shape).copy())
        offset += count * dtype.itemsize
    return tuple(arrays)
