"""Sparse vectors: weights over the vocabulary, in dense form or as (token id, weight) pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from cenote.packed_batch import PackedBatch

# logits that are held at once: those of a vocabulary take much memory
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
    """Compute the weights of all tokens and reduce them per sequence, [seq_indices, width]."""
    max_tokens = max(1, MAX_LOGITS // width)
    rows: list[Tensor] = []
    for group in _split_by_tokens(batch, seq_indices, max_tokens):
        lengths = [batch.seq_lens_cpu[index] for index in group]
        states = _select_states(hidden, batch, group)
        if sum(lengths) <= max_tokens:
            rows += [reduce(weights, dim=0) for weights in torch.split(compute_weights(states), lengths)]
        else:  # a single sequence of more than max_tokens
            partial = [reduce(compute_weights(chunk), dim=0) for chunk in torch.split(states, max_tokens)]
            rows.append(reduce(torch.stack(partial), dim=0))
    return torch.stack(rows)


def dense_to_pairs(vectors: Tensor) -> tuple[Tensor, list[int]]:
    """Return the nonzero entries as (id, weight) rows in order of id, and the number of rows of each vector."""
    rows, ids = vectors.nonzero(as_tuple=True)  # weights are never negative
    return _stack_pairs(ids, vectors[rows, ids]), torch.bincount(rows, minlength=len(vectors)).tolist()


def token_weights_to_pairs(
    weights: Tensor, batch: PackedBatch, seq_indices: Sequence[int], excluded_token_ids: Sequence[int]
) -> tuple[Tensor, list[int]]:
    """Return the maximum weight of each distinct token id of a sequence as (id, weight) rows, and the row counts.

    `weights` [tokens] are those of all tokens; `excluded_token_ids` are special tokens.
    """
    # sequence and token id combined in one key, so that one sort finds the distinct ids of all sequences
    width = int(batch.token_ids.max()) + 1
    keys = batch.segment_ids * width + batch.token_ids
    mask = torch.isin(batch.token_ids, torch.tensor(excluded_token_ids, device=batch.device), invert=True)
    if len(seq_indices) < batch.num_seqs:
        mask &= torch.isin(batch.segment_ids, torch.tensor(seq_indices, device=batch.device))
    keys, weights = keys[mask], weights[mask].float()
    unique_keys, inverse = torch.unique(keys, return_inverse=True)
    maxima = torch.zeros(len(unique_keys), device=weights.device).scatter_reduce_(0, inverse, weights, "amax")
    positive = ~(maxima <= 0)  # true for NaN too, so that the check for finite results finds it
    unique_keys, maxima = unique_keys[positive], maxima[positive]
    counts = torch.bincount(unique_keys // width, minlength=batch.num_seqs)
    return _stack_pairs(unique_keys % width, maxima), counts[list(seq_indices)].tolist()


def _stack_pairs(ids: Tensor, weights: Tensor) -> Tensor:
    # float32 represents integers up to 2**24 exactly, more than any vocabulary has
    return torch.stack((ids.float(), weights.float()), dim=-1)


def _split_by_tokens(batch: PackedBatch, seq_indices: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Yield groups of consecutive sequences with at most `max_tokens` together; a longer one is a group of its own."""
    group: list[int] = []
    for index in seq_indices:
        num_tokens = sum(batch.seq_lens_cpu[other] for other in group)
        if group and num_tokens + batch.seq_lens_cpu[index] > max_tokens:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def _select_states(hidden: Tensor, batch: PackedBatch, seq_indices: Sequence[int]) -> Tensor:
    starts = batch.cu_seqlens_cpu
    if seq_indices[-1] - seq_indices[0] + 1 == len(seq_indices):  # contiguous
        return hidden[starts[seq_indices[0]] : starts[seq_indices[-1] + 1]]
    return torch.cat([hidden[starts[index] : starts[index + 1]] for index in seq_indices])
