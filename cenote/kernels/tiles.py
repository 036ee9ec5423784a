"""Attention on the matrix tiles of recent x86 processors: our own code, compiled at install where a compiler is."""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cenote.batch import PackedBatch

logger = logging.getLogger("cenote")

UNBOUNDED = 1 << 40  # a window that no sequence outgrows


@cache
def available() -> bool:
    return _library() is not None


def fits(query: Tensor) -> bool:
    """Whether the code knows this head size and number type."""
    return query.dtype == torch.bfloat16 and query.shape[-1] % 32 == 0


def attention(
    query: Tensor, key: Tensor, value: Tensor, batch: PackedBatch, *, causal: bool, window: int | None, scale: float
) -> Tensor:
    query, key, value = (_heads_side_by_side(x) for x in (query, key, value))
    out = torch.empty(query.shape, dtype=query.dtype)
    heads, head_dim = query.shape[1:]
    failed = _library().cenote_attention(
        *(ctypes.c_void_p(x.data_ptr()) for x in (query, key, value, out)),
        *(ctypes.c_int64(x.stride(0)) for x in (query, key, value, out)),
        ctypes.c_void_p(batch.offsets.data_ptr()),
        *(ctypes.c_int64(count) for count in (batch.size, batch.max_length, heads, key.shape[1], head_dim)),
        ctypes.c_int(causal),
        ctypes.c_int64(UNBOUNDED if window is None else window),
        ctypes.c_float(scale),
    )
    if failed:
        raise MemoryError(f"no memory for attention over {batch.max_length} tokens")
    return out


def _heads_side_by_side(x: Tensor) -> Tensor:
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


@cache
def _library() -> Any:
    """The compiled code, if it was built and this processor can run it."""
    built = [Path(__file__).with_name(f"_native{suffix}") for suffix in EXTENSION_SUFFIXES]
    path = next((path for path in built if path.exists()), None)
    if path is None:
        return None
    try:
        # its threads are those torch computes with: a second team would fight them for the same cores
        ctypes.CDLL(_openmp_of_torch(), mode=ctypes.RTLD_GLOBAL)
        library = ctypes.CDLL(str(path))
    except OSError as error:
        logger.debug("%s cannot be used: %s", path, error)
        return None
    return library if library.cenote_has_tiles() else None


def _openmp_of_torch() -> str:
    """The OpenMP library that importing torch has brought into this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    found = [line.split(maxsplit=5)[5] for line in lines if "libgomp" in line]
    if not found:
        raise OSError("torch runs without GNU OpenMP here")
    beside = str(Path(torch.__file__).parent)  # also torch.libs; other packages may have brought their own
    return next((path for path in found if path.startswith(beside)), found[0])
