"""Attention for options without a fused kernel: relative position bias, softcap, sinks, unattended tokens."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from cenote.packed_batch import EqualLengthRun, PackedBatch

# maximum number of attention scores in memory at once, whatever the sequence length
MAX_SCORES = 1 << 24
MIN_BLOCK = 256


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    batch: PackedBatch,
    causal: bool,
    window: int | None,
    scale: float,
    softcap: float | None,
    bias: Tensor | None,
    sinks: Tensor | None,
) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    out = torch.empty((*query.shape[:2], value.shape[2]), dtype=value.dtype, device=value.device)
    for run, attended in _split_runs(batch, query.shape[1]):
        rows = slice(run.start, run.start + run.num_seqs * run.seq_len)
        # [num_seqs, heads, seq_len, d], all of them views
        q, k, v = (x[rows].view(run.num_seqs, run.seq_len, *x.shape[1:]).transpose(1, 2) for x in (query, key, value))
        block = max(1, MAX_SCORES // (run.num_seqs * query.shape[1] * run.seq_len))
        if window is not None:  # otherwise max_seqs scores of a long block of queries would be masked
            block = min(block, max(window, MIN_BLOCK))
        for start in range(0, run.seq_len, block):
            end = min(start + block, run.seq_len)
            keys = _key_range(run.seq_len, start, end, causal, window)
            mask = _make_mask(keys, start, end, causal, window, bias, attended, q)
            key_slice = slice(keys.start, keys.stop)
            if softcap is None and sinks is None:
                attn_out = scaled_dot_product_attention(
                    q[:, :, start:end], k[:, :, key_slice], v[:, :, key_slice], attn_mask=mask, scale=scale
                )
            else:
                attn_out = _softmax_attention(
                    q[:, :, start:end], k[:, :, key_slice], v[:, :, key_slice], mask, scale, softcap, sinks
                )
            out[rows].view(run.num_seqs, run.seq_len, *out.shape[1:])[:, start:end] = attn_out.transpose(1, 2)
    return out


def _split_runs(batch: PackedBatch, heads: int) -> list[tuple[EqualLengthRun, Tensor | None]]:
    """Split the runs of a batch to respect MAX_SCORES; return each with the number of attended tokens per sequence."""
    pieces: list[tuple[EqualLengthRun, Tensor | None]] = []
    first_seq = 0
    for run in batch.equal_length_runs:
        max_seqs = max(1, MAX_SCORES // (heads * run.seq_len * run.seq_len))
        for first in range(0, run.num_seqs, max_seqs):
            count = min(max_seqs, run.num_seqs - first)
            attended = None
            if batch.attended_lens_cpu is not None:
                attended = torch.tensor(batch.attended_lens_cpu[first_seq : first_seq + count], device=batch.device)
            pieces.append((EqualLengthRun(run.start + first * run.seq_len, count, run.seq_len), attended))
            first_seq += count
    return pieces


def _key_range(length: int, start: int, end: int, causal: bool, window: int | None) -> range:
    """Return the keys that any of the queries from `start` to `end` may attend to."""
    first = 0 if window is None else max(0, start - window)
    last = length if window is None else min(length, end + window)
    return range(first, min(last, end) if causal else last)


def _make_mask(
    key_range: range,
    start: int,
    end: int,
    causal: bool,
    window: int | None,
    bias: Tensor | None,
    attended: Tensor | None,
    like: Tensor,
) -> Tensor:
    """Return the mask added to the scores of queries `start` to `end`: [num_seqs or 1, heads or 1, queries, keys]."""
    keys = torch.arange(key_range.start, key_range.stop, device=like.device)
    distance = keys - torch.arange(start, end, device=like.device)[:, None]
    if bias is None:
        mask = torch.zeros((1, 1, *distance.shape), dtype=like.dtype, device=like.device)
    else:
        mask = bias[:, distance + bias.shape[1] // 2][None].to(like.dtype)
    if causal:
        mask = mask.masked_fill(distance > 0, -torch.inf)
    if window is not None:
        mask = mask.masked_fill(distance.abs() > window, -torch.inf)
    if attended is not None:
        mask = mask.expand(len(attended), -1, -1, -1).masked_fill(keys >= attended[:, None, None, None], -torch.inf)
    return mask


def _softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, softcap: float | None, sinks: Tensor | None
) -> Tensor:
    scores = (q @ k.transpose(-1, -2)).float() * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores + mask
    if sinks is None:
        return scores.softmax(dim=-1).to(v.dtype) @ v
    sink_scores = sinks.float()[None, :, None, None].expand(*scores.shape[:3], 1)
    weights = torch.cat((scores, sink_scores), dim=-1).softmax(dim=-1)[..., :-1]
    return weights.to(v.dtype) @ v
