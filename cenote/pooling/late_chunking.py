"""Late chunking: the chunks of a document, computed in one sequence, as the sequences of a batch for the pooler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cenote.packed_batch import PackedBatch


def split_chunks(
    hidden: Tensor, batch: PackedBatch, seq_indices: Sequence[int], chunk_size: int | None
) -> tuple[Tensor, PackedBatch, list[int]]:
    """Return the states of some sequences, a batch whose sequences are their chunks, and the chunks of each sequence.

    A chunk has `chunk_size` tokens, the last one those that are left; without a size, `row_mask` marks the first token
    of every chunk.
    """
    offsets = batch.cu_seqlens_cpu
    seq_lens = [offsets[index + 1] - offsets[index] for index in seq_indices]
    if chunk_size is None:
        assert batch.row_mask is not None, "the renderer marks the chunks of every document"
        mask = batch.row_mask.cpu().numpy()
        starts = [np.flatnonzero(mask[offsets[index] : offsets[index + 1]]) for index in seq_indices]
    else:
        starts = [np.arange(0, length, min(chunk_size, length)) for length in seq_lens]
    counts = list(map(len, starts))
    lengths = np.concatenate([np.diff(first, append=length) for first, length in zip(starts, seq_lens, strict=True)])
    cu_seqlens = np.concatenate(([0], np.cumsum(lengths)))
    positions = np.arange(cu_seqlens[-1]) - np.repeat(cu_seqlens[:-1], lengths)
    token_ids = batch.token_ids
    if len(seq_indices) < batch.num_seqs:
        spans = [slice(offsets[index], offsets[index + 1]) for index in seq_indices]
        hidden, token_ids = (torch.cat([values[span] for span in spans]) for values in (hidden, token_ids))
    num_unpooled = None
    # a prompt before the first chunk, which keeps at least one token; it has rows in token-wise results
    if batch.num_unpooled is not None and chunk_size is None:
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
