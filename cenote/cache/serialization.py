"""An answer as bytes, and back: its arrays, each with number type and shape; never code."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"

DTYPES = tuple(np.dtype(name) for name in ("<f4", "<f2", "<f8", "<i4", "<i8"))
DTYPE_CODES = {kind: number for number, kind in enumerate(DTYPES)}
MAX_NDIM = 4


def serialize(arrays: Sequence[Array]) -> bytes | None:
    """None for what is not written here, and then not kept."""
    heads, bodies = [struct.pack("<B", len(arrays))], []
    for array in arrays:
        if array.dtype not in DTYPE_CODES or array.ndim > MAX_NDIM:
            return None
        heads.append(struct.pack(f"<BB{array.ndim}I", DTYPE_CODES[array.dtype], array.ndim, *array.shape))
        bodies.append(array.tobytes())
    return b"".join((*heads, *bodies))


def deserialize(data: bytes) -> tuple[Array, ...]:
    """Arrays that share nothing with what is kept: callers may write into them."""
    at = 1
    shapes: list[tuple[np.dtype[Any], tuple[int, ...]]] = []
    for _ in range(data[0]):
        number, dimensions = struct.unpack_from("<BB", data, at)
        shapes.append((DTYPES[number], struct.unpack_from(f"<{dimensions}I", data, at + 2)))
        at += 2 + 4 * dimensions
    arrays = []
    for kind, shape in shapes:
        count = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(data, kind, count, at).reshape(shape).copy())
        at += count * kind.itemsize
    return tuple(arrays)
