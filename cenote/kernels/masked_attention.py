"""Attention with a mask that no other kernel supports, given as a function of query and key indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from cenote.packed_batch import PackedBatch

# queries of one call, which bounds the memory of its mask
QUERY_BLOCK = 256

# (sequences of the batch, query indices [q, 1], key indices [k]) -> whether they attend, [sequences or 1, 1, q, k]
MaskFunction: TypeAlias = Callable[[slice, Tensor, Tensor], Tensor]


def attention(
    query: Tensor, key: Tensor, value: Tensor, batch: PackedBatch, make_mask: MaskFunction, scale: float
) -> Tensor:
    """Return attention within each sequence: queries [tokens, heads, d], keys and values [tokens, kv_heads, d]."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    pieces, first_seq = [], 0
    for run in batch.equal_length_runs:
        rows = slice(run.start, run.start + run.num_seqs * run.seq_len)
        # [num_seqs, heads, seq_len, d], all of them views
        q, k, v = (x[rows].view(run.num_seqs, run.seq_len, *x.shape[1:]).transpose(1, 2) for x in (query, key, value))
        seqs, indices = slice(first_seq, first_seq + run.num_seqs), torch.arange(run.seq_len, device=query.device)
        blocks = [
            scaled_dot_product_attention(
                q[:, :, block], k, v, attn_mask=make_mask(seqs, indices[block, None], indices), scale=scale
            )
            for start in range(0, run.seq_len, QUERY_BLOCK)
            for block in (slice(start, start + QUERY_BLOCK),)
        ]
        pieces.append(torch.cat(blocks, dim=2).transpose(1, 2).flatten(0, 1))
        first_seq += run.num_seqs
    return torch.cat(pieces)
