"""Attention on the matrix tiles of recent x86 processors: our own code, compiled at install where a compiler is."""

from __future__ import annotations

import torch
from torch import Tensor

from cenote.kernels import native_library
from cenote.packed_batch import PackedBatch


def is_available() -> bool:
    return native_library.is_available()


def supports(query: Tensor) -> bool:
    """Whether the code knows this head size and number type."""
    return query.dtype == torch.bfloat16 and query.shape[-1] % 8 == 0


def attention(
    query: Tensor, key: Tensor, value: Tensor, batch: PackedBatch, *, causal: bool, window: int | None, scale: float
) -> Tensor:
    query, key, value = (_contiguous_heads(x) for x in (query, key, value))
    out = torch.empty(query.shape, dtype=query.dtype)
    heads, head_dim = query.shape[1:]
    failed = native_library.load_library().cenote_attention(
        *(x.data_ptr() for x in (query, key, value, out)),
        *(x.stride(0) for x in (query, key, value, out)),
        batch.cu_seqlens.data_ptr(),
        *(batch.num_seqs, batch.max_seqlen, heads, key.shape[1], head_dim),
        causal,
        native_library.NO_WINDOW if window is None else window,
        scale,
    )
    if failed:
        raise MemoryError(f"no memory for attention over {batch.max_seqlen} tokens")
    return out


def _contiguous_heads(x: Tensor) -> Tensor:
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
