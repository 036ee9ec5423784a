"""Attention over a packed batch on a GPU: each stretch of lengths by the kernel that is fastest for it."""

from __future__ import annotations

import torch
from torch import Tensor

from cenote.kernels.gpu import cudnn_attention
from cenote.kernels.gpu import varlen_attention as own
from cenote.kernels.length_buckets import split_by_length
from cenote.packed_batch import PackedBatch


def attention(
    query: Tensor, key: Tensor, value: Tensor, batch: PackedBatch, *, causal: bool, window: int | None, scale: float
) -> Tensor:
    query, key, value = (_contiguous_heads(x) for x in (query, key, value))
    parts = split_by_length(batch.equal_length_runs, lens_are_upper_bounds=batch.lens_are_upper_bounds)
    if len(parts) == 1 and parts[0].is_equal_length and _window_covers(window, parts[0].max_length):
        found = cudnn_attention.attention(query, key, value, parts[0].num_seqs, causal=causal, scale=scale)
        if found is not None:
            return found
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    for part in parts:
        if part.is_equal_length and len(parts) > 1 and _window_covers(window, part.max_length):
            rows = slice(part.first_row, part.first_row + part.num_seqs * part.max_length)
            found = cudnn_attention.attention(
                query[rows], key[rows], value[rows], part.num_seqs, causal=causal, scale=scale
            )
            if found is not None:
                out[rows] = found
                continue
        which = (part.first_seq, part.num_seqs, part.max_length)
        if part.max_length <= own.TILE:
            own.attend_short(
                query,
                key,
                value,
                out,
                batch.cu_seqlens,
                batch.positions,
                *which,
                causal=causal,
                window=window,
                scale=scale,
            )
        else:
            own.attend_long(query, key, value, out, batch.cu_seqlens, *which, causal=causal, window=window, scale=scale)
    return out


def _contiguous_heads(x: Tensor) -> Tensor:
    """The kernels want the heads of a token one behind the other; tokens may lie apart."""
    return x if x.stride(-1) == 1 and x.stride(-2) == x.shape[-1] else x.contiguous()


def _window_covers(window: int | None, length: int) -> bool:
    return window is None or window >= length - 1
