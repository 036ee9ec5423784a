"""Sparse vectors: weights over the vocabulary, in dense form or as (token id, weight) pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from cenote.pooling.ops import ArrayOps, Batch, Rows

# logits that are held at once: those of a vocabulary take much memory
MAX_LOGITS = 1 << 26

ComputeWeights = Callable[[Rows], Rows]  # [tokens, hidden] -> [tokens, width]
Reduce = Callable[[Rows], Rows]  # [tokens, width] -> [width]


def reduce_by_sequence(
    ops: ArrayOps,
    compute_weights: ComputeWeights,
    reduce: Reduce,
    width: int,
    hidden: Rows,
    batch: Batch,
    seq_indices: Sequence[int],
) -> Rows:
    """Compute the weights of all tokens and reduce them per sequence, [seq_indices, width]."""
    max_tokens = max(1, MAX_LOGITS // width)
    rows: list[Rows] = []
    for group in _split_by_tokens(batch, seq_indices, max_tokens):
        lengths = [batch.seq_lens_cpu[index] for index in group]
        states = _select_states(ops, hidden, batch, group)
        if sum(lengths) <= max_tokens:
            rows += map(reduce, ops.split(compute_weights(states), lengths))
        else:  # a single sequence of more than max_tokens
            chunks = [states[start : start + max_tokens] for start in range(0, len(states), max_tokens)]
            rows.append(reduce(ops.stack([reduce(compute_weights(chunk)) for chunk in chunks])))
    return ops.stack(rows)


def dense_to_pairs(ops: ArrayOps, vectors: Rows) -> tuple[Rows, list[int]]:
    """Return the nonzero entries as (id, weight) rows in order of id, and the number of rows of each vector."""
    rows, ids = ops.nonzero(vectors)  # weights are never negative
    return _stack_pairs(ops, ids, vectors[rows, ids]), ops.bincount(rows, len(vectors))


def token_weights_to_pairs(
    ops: ArrayOps, weights: Rows, batch: Batch, seq_indices: Sequence[int], excluded_token_ids: Sequence[int]
) -> tuple[Rows, list[int]]:
    """Return the maximum weight of each distinct token id of a sequence as (id, weight) rows, and the row counts.

    `weights` [tokens] are those of all tokens; `excluded_token_ids` are special tokens.
    """
    # sequence and token id combined in one key, so that one sort finds the distinct ids of all sequences
    width = int(batch.token_ids.max()) + 1
    keys = batch.segment_ids * width + batch.token_ids
    mask = ops.isin(batch.token_ids, excluded_token_ids, invert=True)
    if len(seq_indices) < batch.num_seqs:
        mask &= ops.isin(batch.segment_ids, seq_indices)
    unique_keys, maxima = ops.max_by_key(keys[mask], ops.to_dtype(weights[mask], "float32"))
    positive = ~(maxima <= 0)  # true for NaN too, so that the check for finite results finds it
    unique_keys, maxima = unique_keys[positive], maxima[positive]
    counts = ops.bincount(unique_keys // width, batch.num_seqs)
    return _stack_pairs(ops, unique_keys % width, maxima), [counts[index] for index in seq_indices]


def _stack_pairs(ops: ArrayOps, ids: Rows, weights: Rows) -> Rows:
    # float32 represents integers up to 2**24 exactly, more than any vocabulary has
    return ops.stack((ops.to_dtype(ids, "float32"), ops.to_dtype(weights, "float32")), axis=-1)


def _split_by_tokens(batch: Batch, seq_indices: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
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


def _select_states(ops: ArrayOps, hidden: Rows, batch: Batch, seq_indices: Sequence[int]) -> Rows:
    starts = batch.cu_seqlens_cpu
    if seq_indices[-1] - seq_indices[0] + 1 == len(seq_indices):  # contiguous
        return hidden[starts[seq_indices[0]] : starts[seq_indices[-1] + 1]]
    return ops.concat([hidden[starts[index] : starts[index + 1]] for index in seq_indices])
