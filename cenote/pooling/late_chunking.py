"""Late chunking: the chunks of a document, computed in one sequence, as the sequences of a batch for the pooler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cenote.packed_batch import PackedBatch
from cenote.pooling.ops import ArrayOps, Batch, Rows


def split_chunks(
    ops: ArrayOps, hidden: Rows, batch: Batch, seq_indices: Sequence[int], chunk_size: int | None
) -> tuple[Rows, Batch, list[int]]:
    """Return the states of some sequences, a batch whose sequences are their chunks, and the chunks of each sequence.

    A chunk has `chunk_size` tokens, the last one those that are left; without a size, `row_mask` marks the first token
    of every chunk.
    """
    offsets = batch.cu_seqlens_cpu
    seq_lens = [offsets[index + 1] - offsets[index] for index in seq_indices]
    if chunk_size is None:
        assert batch.row_mask is not None, "the renderer marks the chunks of every document"
        mask = ops.to_host(batch.row_mask)
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
        hidden, token_ids = (ops.concat([values[span] for span in spans]) for values in (hidden, token_ids))
    num_unpooled = None
    # a prompt before the first chunk, which keeps at least one token; it has rows in token-wise results
    if batch.num_unpooled is not None and chunk_size is None:
        first_chunks = np.cumsum([0, *counts[:-1]])
        per_chunk = np.zeros_like(lengths)
        per_chunk[first_chunks] = ops.to_host(batch.num_unpooled)[list(seq_indices)]
        num_unpooled = ops.from_host(np.minimum(per_chunk, lengths - 1), token_ids)
    chunks: Batch = PackedBatch(
        token_ids=token_ids,
        positions=ops.from_host(positions, token_ids),
        cu_seqlens=ops.from_host(cu_seqlens, token_ids),
        seq_lens_cpu=tuple(lengths.tolist()),
        num_unpooled=num_unpooled,
    )
    return hidden, chunks, counts
