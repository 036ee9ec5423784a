"""Pooling, normalization and the check for NaN of float32 rows on a CPU, each in one call of the C library.

The functions return None if the library is not built or the arrays are of another kind; callers then use NumPy or
torch, whose calls take far longer than the arithmetic on the rows of one text.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, Literal, get_args

import numpy as np

from cenote.kernels.cpu.library import address_of
from cenote.kernels.cpu.threads import count_threads
from cenote.kernels.native_library import open_library
from cenote.utils.arrays import Array

Method = Literal["MEAN", "FIRST", "LAST"]
METHODS: tuple[Method, ...] = get_args(Method)  # in the order of the enum in pooling.c
MIN_VALUES = 1 << 21  # below them, further threads cost more than they gain

_pointer, _int64 = ctypes.c_void_p, ctypes.c_int64
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cenote_pool_rows": (_pointer, _int64, _int64, _pointer, _pointer, _int64, _int64, _pointer, _int64),
    "cenote_normalize_rows": (_pointer, _int64, _int64, _int64, ctypes.c_float, _pointer, _int64),
    "cenote_all_finite": (_pointer, _int64),
}


@cache
def _load() -> Any:
    return open_library(SIGNATURES)


def _is_supported(rows: Array) -> bool:
    is_float32 = rows.dtype == np.float32 and rows.ndim == 2 and rows.strides[1] == rows.itemsize
    return is_float32 and rows.strides[0] % rows.itemsize == 0 and _load() is not None


def pool_rows(hidden: Array, method: Method, cu_seqlens: Array, num_unpooled: Array | None) -> Array | None:
    """Return the mean, the first or the last of the pooled tokens of each sequence, [num_seqs, hidden].

    `cu_seqlens` and `num_unpooled` are contiguous, in int64.
    """
    if not _is_supported(hidden):
        return None
    num_tokens, width = hidden.shape
    num_seqs = len(cu_seqlens) - 1
    out = np.empty((num_seqs, width), np.float32)
    _load().cenote_pool_rows(
        address_of(hidden),
        hidden.strides[0] // hidden.itemsize,
        width,
        address_of(cu_seqlens),
        None if num_unpooled is None else address_of(num_unpooled),
        num_seqs,
        METHODS.index(method),
        address_of(out),
        count_threads(num_tokens * width, MIN_VALUES),
    )
    return out


def normalize_rows(rows: Array, eps: float) -> Array | None:
    """Return the rows divided by their Euclidean norms."""
    if not _is_supported(rows):
        return None
    num_rows, width = rows.shape
    out = np.empty((num_rows, width), np.float32)
    threads = count_threads(num_rows * width, MIN_VALUES)
    stride = rows.strides[0] // rows.itemsize
    _load().cenote_normalize_rows(address_of(rows), stride, width, num_rows, eps, address_of(out), threads)
    return out


def all_finite(values: Array) -> bool | None:
    """Return whether there is neither NaN nor infinity."""
    if not (values.dtype == np.float32 and values.flags.c_contiguous) or _load() is None:
        return None
    return bool(_load().cenote_all_finite(address_of(values), values.size))
