"""MaxSim of late interaction: for each query token the highest similarity to a document token, summed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

# maximum number of similarities in memory at once
MAX_SIMILARITIES = 1 << 24


def max_sim_pairs(queries: Sequence[Tensor], rows: Tensor, counts: Sequence[int]) -> Tensor:
    """Score each document against its query. [q, d] each, concatenated documents [rows, d] -> [documents]

    Queries are compared by identity: a tensor that several documents share is copied to the device once.
    """
    rows = rows.float()
    indices: dict[int, int] = {}  # of distinct queries
    query_indices = [indices.setdefault(id(query), len(indices)) for query in queries]
    distinct = list({id(query): query for query in queries}.values())
    if len(distinct) == 1:
        return max_sim(distinct[0].to(rows), rows, counts)
    ends = torch.tensor([0, *counts]).cumsum(0)
    lengths = [len(query) for query in distinct]
    packed = torch.cat(distinct).to(rows)
    firsts = torch.tensor([0, *lengths]).cumsum(0)
    scores = rows.new_zeros(len(queries))
    width = max(*lengths, rows.shape[-1])
    order = sorted((index for index, count in enumerate(counts) if count), key=counts.__getitem__)
    for positions in _group_by_length([counts[index] for index in order], max(1, MAX_SIMILARITIES // width)):
        group = [order[position] for position in positions]
        if len(group) == 1:  # it may be too large to be padded
            (index,) = group
            query = packed[firsts[query_indices[index]] : firsts[query_indices[index] + 1]]
            scores[index] = max_sim(query, rows[ends[index] : ends[index + 1]], [counts[index]])[0]
            continue
        document_ids, query_ids = torch.tensor(group), torch.tensor([query_indices[index] for index in group])
        documents, _ = _pad_rows(rows, ends[document_ids], ends[document_ids + 1])
        query_rows, is_token = _pad_rows(packed, firsts[query_ids], firsts[query_ids + 1])
        best = (query_rows @ documents.transpose(1, 2)).amax(dim=-1)  # repeated rows do not change the maximum
        scores[document_ids.to(rows.device)] = (best * is_token).sum(dim=-1)
    return scores


def max_sim(query: Tensor, rows: Tensor, counts: Sequence[int]) -> Tensor:
    """Score all documents against one query. A document without rows has score 0."""
    max_rows = max(1, MAX_SIMILARITIES // max(1, len(query)))
    scores, start = [], 0
    for group in _group_within_limit(counts, max_rows):
        part = rows[start : start + sum(group)]
        start += len(part)
        if len(part) > max_rows:  # a single long document
            pieces = [(piece @ query.T).amax(dim=0) for piece in torch.split(part, max_rows)]
            best = torch.stack(pieces).amax(dim=0, keepdim=True)
        else:
            lengths = torch.tensor(group, device=rows.device)
            best = torch.segment_reduce(part @ query.T, "max", lengths=lengths, unsafe=True)
            best = best.masked_fill((lengths == 0)[:, None], 0.0)
        scores.append(best.sum(dim=-1))
    return torch.cat(scores)


def _pad_rows(rows: Tensor, starts: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Return the parts padded to [parts, longest, d] by repeating the last row, and a mask of the original rows."""
    steps = torch.arange(int((ends - starts).max()))
    index = torch.minimum(starts[:, None] + steps, ends[:, None] - 1)
    inside = steps < (ends - starts)[:, None]
    return rows[index.clamp(min=0).to(rows.device)], inside.to(rows.device)


def _group_within_limit(counts: Sequence[int], max_rows: int) -> Iterator[list[int]]:
    """Yield groups of adjacent documents with at most max_rows rows; a longer document is a group of its own."""
    group: list[int] = []
    for count in counts:
        if group and sum(group) + count > max_rows:
            yield group
            group = []
        group.append(count)
    if group:
        yield group


def _group_by_length(counts: Sequence[int], max_rows: int) -> Iterator[range]:
    """Yield groups of ascending counts with at most max_rows rows after padding to the longest of the group."""
    start = 0
    for end, count in enumerate(counts):
        if end > start and count * (end - start + 1) > max_rows:
            yield range(start, end)
            start = end
    if start < len(counts):
        yield range(start, len(counts))
