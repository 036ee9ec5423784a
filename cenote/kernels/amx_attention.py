"""Attention with Intel AMX in native code, compiled at install if a C compiler is available."""

from __future__ import annotations

import torch
from torch import Tensor

from cenote.kernels import native_library
from cenote.packed_batch import PackedBatch


def supports(query: Tensor) -> bool:
    """Return whether the kernel supports this head size and dtype; `native_library.is_available` checks the CPU."""
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
        raise MemoryError(f"cannot allocate scratch memory for attention over {batch.max_seqlen} tokens")
    return out


def _contiguous_heads(x: Tensor) -> Tensor:
    """Return x with the heads of each token contiguous; the stride between tokens may be larger."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
