"""Sparse vectors: weights over the vocabulary, as one number for every entry or as pairs of token id and weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cenote.batch import PackedBatch

# logits over a vocabulary are wide: so many numbers are held at once
MAX_LOGITS = 1 << 26


def most_by_sequence(
    weigh: Callable[[Tensor], Tensor], width: int, hidden: Tensor, batch: PackedBatch, members: Sequence[int]
) -> Tensor:
    """The largest weight that any token of a sequence gives each of `width` entries: [members, width]"""
    rows = []
    for member in members:
        states = hidden[batch.host_offsets[member] : batch.host_offsets[member + 1]]
        pieces = [weigh(piece).amax(dim=0) for piece in torch.split(states, max(1, MAX_LOGITS // width))]
        rows.append(pieces[0] if len(pieces) == 1 else torch.stack(pieces).amax(dim=0))
    return torch.stack(rows)


def pairs_of_vectors(vectors: Tensor) -> tuple[Tensor, list[int]]:
    """The entries above zero, as rows of id and weight in order of id, and how many rows each vector has."""
    owners, ids = vectors.nonzero(as_tuple=True)  # weights are never below zero
    # float32 holds every whole number below 2**24, more than any vocabulary has
    rows = torch.stack((ids.float(), vectors[owners, ids].float()), dim=-1)
    return rows, torch.bincount(owners, minlength=len(vectors)).tolist()


def pairs_by_token(
    weights: Tensor, batch: PackedBatch, members: Sequence[int], not_words: Sequence[int]
) -> tuple[Tensor, list[int]]:
    """From a weight for every token [tokens] to the largest for every id of a sequence; special tokens have none."""
    special = torch.tensor(list(not_words), dtype=batch.token_ids.dtype, device=batch.device)
    rows, counts = [], []
    for member in members:
        span = slice(batch.host_offsets[member], batch.host_offsets[member + 1])
        ids, at = torch.unique(batch.token_ids[span], return_inverse=True)
        most = torch.zeros(len(ids), device=weights.device).index_reduce_(0, at, weights[span].float(), "amax")
        kept = (most > 0) & ~torch.isin(ids, special)
        rows.append(torch.stack((ids[kept].float(), most[kept]), dim=-1))
        counts.append(len(rows[-1]))
    return torch.cat(rows), counts
