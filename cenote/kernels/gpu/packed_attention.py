"""Attention over a packed batch on a GPU: each stretch of lengths by the kernel that is fastest for it."""

from __future__ import annotations

import torch
from torch import Tensor

from cenote.kernels.gpu import cudnn_attention
from cenote.kernels.gpu import varlen_attention as own
from cenote.kernels.length_buckets import stretches
from cenote.packed_batch import PackedBatch


def attention(
    query: Tensor, key: Tensor, value: Tensor, batch: PackedBatch, *, causal: bool, window: int | None, scale: float
) -> Tensor:
    query, key, value = (_side_by_side(x) for x in (query, key, value))
    parts = stretches(batch.runs, loose=batch.loose)
    if len(parts) == 1 and parts[0].equal and _whole(window, parts[0].longest):
        found = cudnn_attention.attention(query, key, value, parts[0].count, causal=causal, scale=scale)
        if found is not None:
            return found
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    for part in parts:
        if part.equal and len(parts) > 1 and _whole(window, part.longest):
            rows = slice(part.start, part.start + part.count * part.longest)
            found = cudnn_attention.attention(
                query[rows], key[rows], value[rows], part.count, causal=causal, scale=scale
            )
            if found is not None:
                out[rows] = found
                continue
        which = (part.first, part.count, part.longest)
        if part.longest <= own.TILE:
            own.short(
                query,
                key,
                value,
                out,
                batch.offsets,
                batch.positions,
                *which,
                causal=causal,
                window=window,
                scale=scale,
            )
        else:
            own.long(query, key, value, out, batch.offsets, *which, causal=causal, window=window, scale=scale)
    return out


def _side_by_side(x: Tensor) -> Tensor:
    """The kernels want the heads of a token one behind the other; tokens may lie apart."""
    return x if x.stride(-1) == 1 and x.stride(-2) == x.shape[-1] else x.contiguous()


def _whole(window: int | None, length: int) -> bool:
    return window is None or window >= length - 1
