"""Attention with torch's scaled_dot_product_attention, one call per run of equal lengths: no padding and no copies."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from cenote.packed_batch import PackedBatch

# sliding windows are computed in blocks of queries, so that the mask does not grow with the square of the length
QUERY_BLOCK = 1024


def attention(
    query: Tensor, key: Tensor, value: Tensor, batch: PackedBatch, *, causal: bool, window: int | None, scale: float
) -> Tensor:
    if batch.is_deterministic:
        return _attend_each(query, key, value, batch, causal, window, scale)
    pieces = []
    for run in batch.equal_length_runs:
        rows = slice(run.start, run.start + run.num_seqs * run.seq_len)
        # [num_seqs, heads, seq_len, d], all of them views
        q, k, v = (x[rows].view(run.num_seqs, run.seq_len, *x.shape[1:]).transpose(1, 2) for x in (query, key, value))
        if window is None or run.seq_len <= window + 1:
            out = _attend(q, k, v, None, causal, scale)
        else:
            out = _attend_window(q, k, v, causal, window, scale)
        pieces.append(out.transpose(1, 2).flatten(0, 1))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _attend_each(
    query: Tensor, key: Tensor, value: Tensor, batch: PackedBatch, causal: bool, window: int | None, scale: float
) -> Tensor:
    """Run one call per sequence, with less overhead per sequence than a run has."""
    # [1, heads, seq_len, d] each, all of them views
    heads = (torch.split(x.transpose(0, 1)[None], list(batch.seq_lens_cpu), dim=2) for x in (query, key, value))
    outputs = [
        _attend(q, k, v, None, causal, scale)
        if window is None or q.shape[2] <= window + 1
        else _attend_window(q, k, v, causal, window, scale)
        for q, k, v in zip(*heads, strict=True)
    ]
    return torch.cat([out.transpose(1, 2) for out in outputs], dim=1)[0]


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    is_gqa = q.shape[1] != k.shape[1]
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=is_gqa)


def _attend_window(q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int, scale: float) -> Tensor:
    """Attend to the keys at most `window` tokens away, on both sides or only before the query."""
    length = q.shape[2]
    blocks = []
    for start in range(0, length, QUERY_BLOCK):
        end = min(start + QUERY_BLOCK, length)
        first, last = max(0, start - window), end if causal else min(length, end + window)
        distance = torch.arange(start, end, device=q.device)[:, None] - torch.arange(first, last, device=q.device)
        mask = (distance <= window) & (distance >= (0 if causal else -window))
        blocks.append(_attend(q[:, :, start:end], k[:, :, first:last], v[:, :, first:last], mask, False, scale))
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=2)
