"""Attention over a packed batch on a GPU: each length bucket uses its fastest kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from cenote.kernels.gpu import cudnn_attention, varlen_attention
from cenote.kernels.length_buckets import split_by_kernel, split_by_length
from cenote.packed_batch import PackedBatch


def attention(
    query: Tensor, key: Tensor, value: Tensor, batch: PackedBatch, *, causal: bool, window: int | None, scale: float
) -> Tensor:
    query, key, value = (_contiguous_heads(x) for x in (query, key, value))
    if batch.is_deterministic:
        tile, narrow_length = varlen_attention.TILE, varlen_attention.NARROW_MAX_LENGTH
        buckets = split_by_kernel(batch.equal_length_runs, window, tile=tile, narrow_length=narrow_length)
    else:
        buckets = split_by_length(batch.equal_length_runs, lens_are_upper_bounds=batch.lens_are_upper_bounds)
    if len(buckets) == 1 and buckets[0].is_equal_length and _window_covers(window, buckets[0].max_length):
        cudnn_out = cudnn_attention.attention(query, key, value, buckets[0].num_seqs, causal=causal, scale=scale)
        if cudnn_out is not None:
            return cudnn_out
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    for bucket in buckets:
        if bucket.is_equal_length and len(buckets) > 1 and _window_covers(window, bucket.max_length):
            rows = slice(bucket.first_row, bucket.first_row + bucket.num_seqs * bucket.max_length)
            cudnn_out = cudnn_attention.attention(
                query[rows], key[rows], value[rows], bucket.num_seqs, causal=causal, scale=scale
            )
            if cudnn_out is not None:
                out[rows] = cudnn_out
                continue
        seqs = (bucket.first_seq, bucket.num_seqs, bucket.max_length)
        if bucket.max_length <= varlen_attention.TILE:
            varlen_attention.attend_short(
                query,
                key,
                value,
                out,
                batch.cu_seqlens,
                batch.positions,
                *seqs,
                causal=causal,
                window=window,
                scale=scale,
            )
        else:
            varlen_attention.attend_long(
                query, key, value, out, batch.cu_seqlens, *seqs, causal=causal, window=window, scale=scale
            )
    return out


def _contiguous_heads(x: Tensor) -> Tensor:
    """Return x with the heads of each token contiguous; the stride between tokens may be larger."""
    return x if x.stride(-1) == 1 and x.stride(-2) == x.shape[-1] else x.contiguous()


def _window_covers(window: int | None, length: int) -> bool:
    return window is None or window >= length - 1
