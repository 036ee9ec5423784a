"""Pooling, normalization and the check for NaN of float32 rows on a CPU, each in one call of the C library.

The functions return None if the library is not built or the tensors are of another kind; callers then use torch, whose
calls take far longer than the arithmetic on the rows of one text.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from cenote.kernels.cpu.threads import count_threads
from cenote.kernels.native_library import open_library

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


def _is_supported(rows: Tensor) -> bool:
    return (
        rows.is_cpu and rows.dtype is torch.float32 and rows.ndim == 2 and rows.stride(1) == 1 and _load() is not None
    )


def pool_rows(hidden: Tensor, method: Method, cu_seqlens: Tensor, num_unpooled: Tensor | None) -> Tensor | None:
    """Return the mean, the first or the last of the pooled tokens of each sequence, [num_seqs, hidden]."""
    if not _is_supported(hidden):
        return None
    num_tokens, width = hidden.shape
    num_seqs = len(cu_seqlens) - 1
    out = torch.empty((num_seqs, width))
    _load().cenote_pool_rows(
        hidden.data_ptr(),
        hidden.stride(0),
        width,
        cu_seqlens.data_ptr(),
        None if num_unpooled is None else num_unpooled.data_ptr(),
        num_seqs,
        METHODS.index(method),
        out.data_ptr(),
        count_threads(num_tokens * width, MIN_VALUES),
    )
    return out


def normalize_rows(rows: Tensor, eps: float) -> Tensor | None:
    """Return the rows divided by their Euclidean norms."""
    if not _is_supported(rows):
        return None
    num_rows, width = rows.shape
    out = torch.empty((num_rows, width))
    threads = count_threads(num_rows * width, MIN_VALUES)
    _load().cenote_normalize_rows(rows.data_ptr(), rows.stride(0), width, num_rows, eps, out.data_ptr(), threads)
    return out


def all_finite(values: Tensor) -> bool | None:
    """Return whether there is neither NaN nor infinity."""
    if not (values.is_cpu and values.dtype is torch.float32 and values.is_contiguous()) or _load() is None:
        return None
    return bool(_load().cenote_all_finite(values.data_ptr(), values.numel()))
