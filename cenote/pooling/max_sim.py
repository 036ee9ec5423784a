"""MaxSim of late interaction: for each query token the highest similarity to a document token, summed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from cenote.pooling.ops import ArrayOps, Rows
from cenote.utils.arrays import Array

# maximum number of similarities in memory at once
MAX_SIMILARITIES = 1 << 24


def max_sim_pairs(ops: ArrayOps, queries: Sequence[Array], rows: Rows, counts: Sequence[int]) -> Rows:
    """Score each document against its query. [q, d] each, on the host, concatenated documents [rows, d] -> [documents]

    Queries are compared by identity: an array that several documents share is copied to the device once.
    """
    rows = ops.to_dtype(rows, "float32")
    indices: dict[int, int] = {}  # of distinct queries
    query_indices = np.array([indices.setdefault(id(query), len(indices)) for query in queries])
    distinct = list({id(query): np.asarray(query, np.float32) for query in queries}.values())
    packed = ops.from_host(distinct[0] if len(distinct) == 1 else np.concatenate(distinct), rows)
    if len(distinct) == 1:
        return max_sim(ops, packed, rows, counts)
    ends, firsts = np.cumsum([0, *counts]), np.cumsum([0, *map(len, distinct)])
    scores = ops.zeros((len(queries),), "float32", rows)
    width = max(*map(len, distinct), rows.shape[-1])
    order = sorted((index for index, count in enumerate(counts) if count), key=counts.__getitem__)
    for positions in _group_by_length([counts[index] for index in order], max(1, MAX_SIMILARITIES // width)):
        group = np.array([order[position] for position in positions])
        query_ids = query_indices[group]
        if len(group) == 1:  # it may be too large to be padded
            ((index,), (number,)) = group.tolist(), query_ids.tolist()
            query = packed[firsts[number] : firsts[number + 1]]
            scores[index] = max_sim(ops, query, rows[ends[index] : ends[index + 1]], [counts[index]])[0]
            continue
        documents, _ = _pad_rows(ops, rows, ends[group], ends[group + 1])
        query_rows, is_token = _pad_rows(ops, packed, firsts[query_ids], firsts[query_ids + 1])
        best = ops.amax(query_rows @ documents.swapaxes(1, 2), -1)  # repeated rows do not change the maximum
        scores[ops.from_host(group, rows)] = (best * is_token).sum(axis=-1)
    return scores


def max_sim(ops: ArrayOps, query: Rows, rows: Rows, counts: Sequence[int]) -> Rows:
    """Score all documents against one query. A document without rows has score 0."""
    max_rows = max(1, MAX_SIMILARITIES // max(1, len(query)))
    scores, start = [], 0
    for group in _group_within_limit(counts, max_rows):
        part = rows[start : start + sum(group)]
        start += len(part)
        if len(part) > max_rows:  # a single long document
            pieces = [part[first : first + max_rows] @ query.T for first in range(0, len(part), max_rows)]
            best = ops.amax(ops.stack([ops.amax(piece, 0) for piece in pieces]), 0)[None]
        else:
            offsets = ops.from_host(np.cumsum([0, *group]), rows)
            best = ops.max_by_segment(part @ query.T, offsets)
            if 0 in group:
                best = ops.where((offsets[1:] == offsets[:-1])[:, None], 0.0, best)
        scores.append(best.sum(axis=-1))
    return scores[0] if len(scores) == 1 else ops.concat(scores)


def _pad_rows(ops: ArrayOps, rows: Rows, starts: Array, ends: Array) -> tuple[Rows, Rows]:
    """Return the parts padded to [parts, longest, d] by repeating the last row, and a mask of the original rows."""
    steps = np.arange((ends - starts).max())
    index = np.minimum(starts[:, None] + steps, ends[:, None] - 1).clip(min=0)
    return rows[ops.from_host(index, rows)], ops.from_host(steps < (ends - starts)[:, None], rows)


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
