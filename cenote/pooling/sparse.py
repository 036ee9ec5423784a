"""Sparse vectors: weights over the vocabulary, as one number for every entry or as pairs of token id and weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from cenote.packed_batch import PackedBatch

# logits over a vocabulary are wide: so many numbers are held at once
MAX_LOGITS = 1 << 26

ComputeWeights = Callable[[Tensor], Tensor]  # [tokens, hidden] -> [tokens, width]
Reduce = Callable[..., Tensor]  # torch.amax, torch.sum


def reduce_by_sequence(
    compute_weights: ComputeWeights,
    reduce: Reduce,
    width: int,
    hidden: Tensor,
    batch: PackedBatch,
    seq_indices: Sequence[int],
) -> Tensor:
    """The rows of every token as one row for its sequence: [members, width]"""
    max_tokens = max(1, MAX_LOGITS // width)
    rows: list[Tensor] = []
    for neighbours in _split_by_tokens(batch, seq_indices, max_tokens):
        lengths = [batch.seq_lens_cpu[member] for member in neighbours]
        states = _select_states(hidden, batch, neighbours)
        if sum(lengths) <= max_tokens:
            rows += [reduce(part, dim=0) for part in torch.split(compute_weights(states), lengths)]
        else:  # one sequence longer than that
            pieces = [reduce(compute_weights(piece), dim=0) for piece in torch.split(states, max_tokens)]
            rows.append(reduce(torch.stack(pieces), dim=0))
    return torch.stack(rows)


def dense_to_pairs(vectors: Tensor) -> tuple[Tensor, list[int]]:
    """The entries above zero, as rows of id and weight in order of id, and how many rows each vector has."""
    owners, ids = vectors.nonzero(as_tuple=True)  # weights are never below zero
    return _stack_pairs(ids, vectors[owners, ids]), torch.bincount(owners, minlength=len(vectors)).tolist()


def token_weights_to_pairs(
    weights: Tensor, batch: PackedBatch, seq_indices: Sequence[int], excluded_token_ids: Sequence[int]
) -> tuple[Tensor, list[int]]:
    """From a weight for every token [tokens] to the largest for every id of a sequence; special tokens have none."""
    # owner and id in one number: then one sort finds the ids of all sequences
    width = int(batch.token_ids.max()) + 1
    keys = batch.segment_ids * width + batch.token_ids
    words = torch.isin(batch.token_ids, torch.tensor(excluded_token_ids, device=batch.device), invert=True)
    if len(seq_indices) < batch.num_seqs:
        words &= torch.isin(batch.segment_ids, torch.tensor(seq_indices, device=batch.device))
    keys, weights = keys[words], weights[words].float()
    found, at = torch.unique(keys, return_inverse=True)
    most = torch.zeros(len(found), device=weights.device).scatter_reduce_(0, at, weights, "amax")
    kept = ~(most <= 0)  # what is not a number stays, to be found out
    found, most = found[kept], most[kept]
    counts = torch.bincount(found // width, minlength=batch.num_seqs)
    return _stack_pairs(found % width, most), counts[list(seq_indices)].tolist()


def _stack_pairs(ids: Tensor, weights: Tensor) -> Tensor:
    # float32 holds every whole number below 2**24, more than any vocabulary has
    return torch.stack((ids.float(), weights.float()), dim=-1)


def _split_by_tokens(batch: PackedBatch, seq_indices: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """As many sequences at a time as have that many tokens together; one that has more comes alone."""
    group: list[int] = []
    for member in seq_indices:
        tokens = sum(batch.seq_lens_cpu[each] for each in group)
        if group and tokens + batch.seq_lens_cpu[member] > max_tokens:
            yield group
            group = []
        group.append(member)
    if group:
        yield group


def _select_states(hidden: Tensor, batch: PackedBatch, seq_indices: Sequence[int]) -> Tensor:
    starts = batch.cu_seqlens_cpu
    if seq_indices[-1] - seq_indices[0] + 1 == len(seq_indices):  # side by side
        return hidden[starts[seq_indices[0]] : starts[seq_indices[-1] + 1]]
    return torch.cat([hidden[starts[member] : starts[member + 1]] for member in seq_indices])
