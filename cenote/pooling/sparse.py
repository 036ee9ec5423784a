"""Sparse vectors: weights over the vocabulary, as one number for every entry or as pairs of token id and weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from cenote.packed_batch import PackedBatch

# logits over a vocabulary are wide: so many numbers are held at once
MAX_LOGITS = 1 << 26

Weigh = Callable[[Tensor], Tensor]  # [tokens, hidden] -> [tokens, width]
Reduce = Callable[..., Tensor]  # torch.amax, torch.sum


def by_sequence(
    weigh: Weigh, reduce: Reduce, width: int, hidden: Tensor, batch: PackedBatch, members: Sequence[int]
) -> Tensor:
    """The rows of every token as one row for its sequence: [members, width]"""
    max_tokens = max(1, MAX_LOGITS // width)
    rows: list[Tensor] = []
    for neighbours in _fitting(batch, members, max_tokens):
        lengths = [batch.host_lengths[member] for member in neighbours]
        states = _states(hidden, batch, neighbours)
        if sum(lengths) <= max_tokens:
            rows += [reduce(part, dim=0) for part in torch.split(weigh(states), lengths)]
        else:  # one sequence longer than that
            pieces = [reduce(weigh(piece), dim=0) for piece in torch.split(states, max_tokens)]
            rows.append(reduce(torch.stack(pieces), dim=0))
    return torch.stack(rows)


def pairs_of_vectors(vectors: Tensor) -> tuple[Tensor, list[int]]:
    """The entries above zero, as rows of id and weight in order of id, and how many rows each vector has."""
    owners, ids = vectors.nonzero(as_tuple=True)  # weights are never below zero
    return _pairs(ids, vectors[owners, ids]), torch.bincount(owners, minlength=len(vectors)).tolist()


def pairs_by_token(
    weights: Tensor, batch: PackedBatch, members: Sequence[int], not_words: Sequence[int]
) -> tuple[Tensor, list[int]]:
    """From a weight for every token [tokens] to the largest for every id of a sequence; special tokens have none."""
    # owner and id in one number: then one sort finds the ids of all sequences
    width = int(batch.token_ids.max()) + 1
    keys = batch.owner * width + batch.token_ids
    words = torch.isin(batch.token_ids, torch.tensor(not_words, device=batch.device), invert=True)
    if len(members) < batch.size:
        words &= torch.isin(batch.owner, torch.tensor(members, device=batch.device))
    keys, weights = keys[words], weights[words].float()
    found, at = torch.unique(keys, return_inverse=True)
    most = torch.zeros(len(found), device=weights.device).scatter_reduce_(0, at, weights, "amax")
    kept = ~(most <= 0)  # what is not a number stays, to be found out
    found, most = found[kept], most[kept]
    counts = torch.bincount(found // width, minlength=batch.size)
    return _pairs(found % width, most), counts[list(members)].tolist()


def _pairs(ids: Tensor, weights: Tensor) -> Tensor:
    # float32 holds every whole number below 2**24, more than any vocabulary has
    return torch.stack((ids.float(), weights.float()), dim=-1)


def _fitting(batch: PackedBatch, members: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """As many sequences at a time as have that many tokens together; one that has more comes alone."""
    group: list[int] = []
    for member in members:
        tokens = sum(batch.host_lengths[each] for each in group)
        if group and tokens + batch.host_lengths[member] > max_tokens:
            yield group
            group = []
        group.append(member)
    if group:
        yield group


def _states(hidden: Tensor, batch: PackedBatch, members: Sequence[int]) -> Tensor:
    starts = batch.host_offsets
    if members[-1] - members[0] + 1 == len(members):  # side by side
        return hidden[starts[members[0]] : starts[members[-1] + 1]]
    return torch.cat([hidden[starts[member] : starts[member + 1]] for member in members])
