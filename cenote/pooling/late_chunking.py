"""Late chunking: the chunks of a document, computed in one sequence, as the sequences of a batch for the pooler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cenote.packed_batch import PackedBatch


def split_chunks(
    hidden: Tensor, batch: PackedBatch, seq_indices: Sequence[int]
) -> tuple[Tensor, PackedBatch, list[int]]:
    """Return the states of some sequences, a batch whose sequences are their chunks, and the chunks of each sequence.

    `row_mask` marks the first token of every chunk.
    """
    assert batch.row_mask is not None, "the renderer marks the chunks of every document"
    mask, offsets = batch.row_mask.cpu().numpy(), batch.cu_seqlens_cpu
    masks = [mask[offsets[index] : offsets[index + 1]] for index in seq_indices]
    counts = [int(np.count_nonzero(seq_mask)) for seq_mask in masks]
    lengths = np.concatenate([np.diff(np.append(np.flatnonzero(seq_mask), len(seq_mask))) for seq_mask in masks])
    cu_seqlens = np.concatenate(([0], np.cumsum(lengths)))
    positions = np.arange(cu_seqlens[-1]) - np.repeat(cu_seqlens[:-1], lengths)
    token_ids = batch.token_ids
    if len(seq_indices) < batch.num_seqs:
        spans = [slice(offsets[index], offsets[index + 1]) for index in seq_indices]
        hidden, token_ids = (torch.cat([values[span] for span in spans]) for values in (hidden, token_ids))
    num_unpooled = None
    if batch.num_unpooled is not None:  # a prompt before the first chunk, which keeps at least one token
        first_chunks = np.cumsum([0, *counts[:-1]])
        per_chunk = np.zeros_like(lengths)
        per_chunk[first_chunks] = batch.num_unpooled.cpu().numpy()[list(seq_indices)]
        num_unpooled = torch.from_numpy(np.minimum(per_chunk, lengths - 1)).to(batch.device)
    chunks = PackedBatch(
        token_ids=token_ids,
        positions=torch.from_numpy(positions).to(batch.device),
        cu_seqlens=torch.from_numpy(cu_seqlens).to(batch.device),
        seq_lens_cpu=tuple(lengths.tolist()),
        num_unpooled=num_unpooled,
    )
    return hidden, chunks, counts
