"""Late interaction: for every token of a query its best match in a document, summed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

# similarities that are held at once, of all documents together
MAX_SIMILARITIES = 1 << 24


def max_sim_pairs(queries: Sequence[Tensor], rows: Tensor, counts: Sequence[int]) -> Tensor:
    """Of documents laid end to end, how well each matches its query. [q, d] each, [rows, d] -> [documents]

    Documents that share a query share its tensor, which then goes to the device once.
    """
    rows = rows.float()
    numbers: dict[int, int] = {}  # of the different queries
    own = [numbers.setdefault(id(query), len(numbers)) for query in queries]
    different = list({id(query): query for query in queries}.values())
    if len(different) == 1:
        return max_sim(different[0].to(rows), rows, counts)
    ends = torch.tensor([0, *counts]).cumsum(0)
    lengths = [len(query) for query in different]
    packed = torch.cat(different).to(rows)
    firsts = torch.tensor([0, *lengths]).cumsum(0)
    scores = rows.new_zeros(len(queries))
    width = max(*lengths, rows.shape[-1])
    order = sorted((place for place, count in enumerate(counts) if count), key=counts.__getitem__)
    for places in _group_by_length([counts[place] for place in order], max(1, MAX_SIMILARITIES // width)):
        chosen = [order[place] for place in places]
        if len(chosen) == 1:  # maybe one that is too large to be filled up
            (place,) = chosen
            query = packed[firsts[own[place]] : firsts[own[place] + 1]]
            scores[place] = max_sim(query, rows[ends[place] : ends[place + 1]], [counts[place]])[0]
            continue
        at, known = torch.tensor(chosen), torch.tensor([own[place] for place in chosen])
        documents, _ = _pad_rows(rows, ends[at], ends[at + 1])
        asked, is_token = _pad_rows(packed, firsts[known], firsts[known + 1])
        best = (asked @ documents.transpose(1, 2)).amax(dim=-1)  # a row that is repeated is no better than it was
        scores[at.to(rows.device)] = (best * is_token).sum(dim=-1)
    return scores


def max_sim(query: Tensor, rows: Tensor, counts: Sequence[int]) -> Tensor:
    """The same with one query for all. A document without rows matches nothing."""
    max_rows = max(1, MAX_SIMILARITIES // max(1, len(query)))
    scores, start = [], 0
    for group in _group_within_limit(counts, max_rows):
        part = rows[start : start + sum(group)]
        start += len(part)
        if len(part) > max_rows:  # one document longer than that
            pieces = [(piece @ query.T).amax(dim=0) for piece in torch.split(part, max_rows)]
            best = torch.stack(pieces).amax(dim=0, keepdim=True)
        else:
            lengths = torch.tensor(group, device=rows.device)
            best = torch.segment_reduce(part @ query.T, "max", lengths=lengths, unsafe=True)
            best = best.masked_fill((lengths == 0)[:, None], 0.0)
        scores.append(best.sum(dim=-1))
    return torch.cat(scores)


def _pad_rows(rows: Tensor, starts: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Parts of equal length [parts, longest, d], the shorter with their last row repeated; and which rows are not."""
    steps = torch.arange(int((ends - starts).max()))
    index = torch.minimum(starts[:, None] + steps, ends[:, None] - 1)
    inside = steps < (ends - starts)[:, None]
    return rows[index.clamp(min=0).to(rows.device)], inside.to(rows.device)


def _group_within_limit(counts: Sequence[int], max_rows: int) -> Iterator[list[int]]:
    """As many documents at a time as have that many rows together; one that has more comes alone."""
    group: list[int] = []
    for count in counts:
        if group and sum(group) + count > max_rows:
            yield group
            group = []
        group.append(count)
    if group:
        yield group


def _group_by_length(counts: Sequence[int], max_rows: int) -> Iterator[range]:
    """The same for counts in rising order, all as long as the longest of their group."""
    start = 0
    for place, count in enumerate(counts):
        if place > start and count * (place - start + 1) > max_rows:
            yield range(start, place)
            start = place
    if start < len(counts):
        yield range(start, len(counts))
