"""Pooling methods: reduce the token states of each sequence to one vector."""

from __future__ import annotations

from collections.abc import Callable

from cenote.pooling.ops import ArrayOps, Batch, Rows
from cenote.utils.registry import Registry

PoolingMethod = Callable[[ArrayOps, Rows, Batch], Rows]  # [tokens, hidden] -> [num_seqs, hidden]
POOLING_METHODS: Registry[PoolingMethod] = Registry("pooling method")
register_method = POOLING_METHODS.register


@register_method("CLS")
def cls(ops: ArrayOps, hidden: Rows, batch: Batch) -> Rows:
    """Return the first pooled token: the first one of the text if the prompt is excluded from pooling."""
    if (pooled := ops.pool_tokens(hidden, "FIRST", batch)) is not None:
        return pooled
    first = batch.cu_seqlens[:-1]
    return hidden[first if batch.num_unpooled is None else first + batch.num_unpooled]


@register_method("LAST")
def last(ops: ArrayOps, hidden: Rows, batch: Batch) -> Rows:
    if (pooled := ops.pool_tokens(hidden, "LAST", batch)) is not None:
        return pooled
    return hidden[batch.cu_seqlens[1:] - 1]


@register_method("LAST_AND_PROMPT_END")
def last_and_prompt_end(ops: ArrayOps, hidden: Rows, batch: Batch) -> Rows:
    """Return the last token and the one at the end of the prompt, which precedes the tokens that are pooled."""
    return ops.concat([last(ops, hidden, batch), cls(ops, hidden, batch)], axis=-1)


@register_method("MEAN")
def mean(ops: ArrayOps, hidden: Rows, batch: Batch) -> Rows:
    if (pooled := ops.pool_tokens(hidden, "MEAN", batch)) is not None:
        return pooled
    return ops.sum_by_sequence(hidden, batch, batch.num_unpooled) / _count_pooled_tokens(ops, batch)


@register_method("IMAGE_MEAN")
def image_mean(ops: ArrayOps, hidden: Rows, batch: Batch) -> Rows:
    """Return the mean of an image's tokens and of the tokens around it (its start and end); of texts, of all tokens."""
    if batch.images is None:
        return mean(ops, hidden, batch)
    is_image = ops.zeros((batch.num_tokens,), "bool", hidden)
    is_image[batch.images.token_indices] = True
    is_neighbour = batch.segment_ids[1:] == batch.segment_ids[:-1]
    pooled = ops.copy(is_image)
    pooled[1:] |= is_image[:-1] & is_neighbour
    pooled[:-1] |= is_image[1:] & is_neighbour
    of_text = ~_find_images(ops, hidden, batch)[batch.segment_ids]
    if batch.num_unpooled is not None:
        of_text &= _make_pooled_mask(batch, batch.num_unpooled)
    weights = ops.to_dtype(pooled | of_text, "float32")[:, None]
    total = ops.sum_by_sequence(ops.to_dtype(hidden, "float32") * weights, batch, None)
    return total / ops.sum_by_sequence(weights, batch, None)


@register_method("TEXT_MEAN")
def text_mean(ops: ArrayOps, hidden: Rows, batch: Batch) -> Rows:
    """Return the mean of a text; of an image without text the last row, where its tower puts the pooled state."""
    if batch.images is None:
        return mean(ops, hidden, batch)
    of_images, of_texts = (ops.to_dtype(method(ops, hidden, batch), "float32") for method in (last, mean))
    return ops.where(_find_images(ops, hidden, batch)[:, None], of_images, of_texts)


def mean_without(ops: ArrayOps, hidden: Rows, batch: Batch, token_ids: tuple[int, ...]) -> Rows:
    """Return the mean without the states of some tokens; zero for a sequence of only these."""
    mask = ops.to_dtype(ops.isin(batch.token_ids, token_ids, invert=True), "float32")[:, None]
    total = ops.sum_by_sequence(ops.to_dtype(hidden, "float32") * mask, batch, batch.num_unpooled)
    return total / ops.clamp_min(ops.sum_by_sequence(mask, batch, batch.num_unpooled), 1)


@register_method("MEAN_SQRT_LEN")
def mean_sqrt_len(ops: ArrayOps, hidden: Rows, batch: Batch) -> Rows:
    return ops.sum_by_sequence(hidden, batch, batch.num_unpooled) / _count_pooled_tokens(ops, batch) ** 0.5


@register_method("WEIGHTEDMEAN")
def weighted_mean(ops: ArrayOps, hidden: Rows, batch: Batch) -> Rows:
    """Return the mean weighted by position in the sequence, counted from 1."""
    weights = ops.to_dtype(batch.positions + 1, "float32")[:, None]
    total = ops.sum_by_sequence(ops.to_dtype(hidden, "float32") * weights, batch, batch.num_unpooled)
    return total / ops.sum_by_sequence(weights, batch, batch.num_unpooled)


@register_method("MAX")
def max_pool(ops: ArrayOps, hidden: Rows, batch: Batch) -> Rows:
    wide = ops.to_dtype(hidden, "float32")
    if batch.num_unpooled is not None:
        wide = ops.where(_make_pooled_mask(batch, batch.num_unpooled)[:, None], wide, float("-inf"))
    return ops.max_by_segment(wide, batch.cu_seqlens)


def _find_images(ops: ArrayOps, hidden: Rows, batch: Batch) -> Rows:
    """Return for each sequence whether it has an image, [num_seqs]."""
    assert batch.images is not None
    has_image = ops.zeros((batch.num_seqs,), "bool", hidden)
    has_image[batch.segment_ids[batch.images.token_indices]] = True
    return has_image


def _count_pooled_tokens(ops: ArrayOps, batch: Batch) -> Rows:
    """Return the number of pooled tokens of each sequence, [num_seqs, 1]."""
    count = batch.seq_lens if batch.num_unpooled is None else batch.seq_lens - batch.num_unpooled
    return ops.to_dtype(count, "float32")[:, None]


def _make_pooled_mask(batch: Batch, num_unpooled: Rows) -> Rows:
    """Return a mask of the pooled tokens, [tokens]."""
    return batch.positions >= num_unpooled[batch.segment_ids]
