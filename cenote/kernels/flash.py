"""Flash attention over packed sequences with `varlen_attn` of recent torch versions, on CUDA."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from cenote.packed_batch import PackedBatch


@cache
def is_available() -> bool:
    return _varlen_attn() is not None


def supports(query: Tensor) -> bool:
    """Return whether the operator supports this head size and dtype."""
    head_dim = query.shape[-1]
    return query.dtype in (torch.float16, torch.bfloat16) and head_dim % 8 == 0 and head_dim <= 256


@cache
def _varlen_attn() -> Any:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn


def attention(
    query: Tensor, key: Tensor, value: Tensor, batch: PackedBatch, *, causal: bool, window: int | None, scale: float
) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    if groups > 1:  # the operator needs as many key heads as query heads
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    reach = -1 if window is None or window >= batch.max_seqlen else window
    offsets = batch.cu_seqlens.to(torch.int32)
    out: Tensor = _varlen_attn()(
        query,
        key,
        value,
        offsets,
        offsets,
        batch.max_seqlen,
        batch.max_seqlen,
        scale=scale,
        window_size=(reach, 0 if causal else reach),
    )
    return out
