"""Pooling methods: reduce the token states of each sequence to one vector."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from cenote.kernels.gpu.triton_support import can_use_triton
from cenote.kernels.native_pooling import pool_rows
from cenote.packed_batch import PackedBatch
from cenote.utils.registry import Registry

PoolingMethod = Callable[[Tensor, PackedBatch], Tensor]  # [tokens, hidden] -> [num_seqs, hidden]
POOLING_METHODS: Registry[PoolingMethod] = Registry("pooling method")
register_method = POOLING_METHODS.register


@register_method("CLS")
def cls(hidden: Tensor, batch: PackedBatch) -> Tensor:
    """Return the first pooled token: the first one of the text if the prompt is excluded from pooling."""
    if (pooled := pool_rows(hidden, "FIRST", batch.cu_seqlens, batch.num_unpooled)) is not None:
        return pooled
    first = batch.cu_seqlens[:-1]
    return hidden[first if batch.num_unpooled is None else first + batch.num_unpooled]


@register_method("LAST")
def last(hidden: Tensor, batch: PackedBatch) -> Tensor:
    if (pooled := pool_rows(hidden, "LAST", batch.cu_seqlens, None)) is not None:
        return pooled
    return hidden[batch.cu_seqlens[1:] - 1]


@register_method("LAST_AND_PROMPT_END")
def last_and_prompt_end(hidden: Tensor, batch: PackedBatch) -> Tensor:
    """Return the last token and the one at the end of the prompt, which precedes the tokens that are pooled."""
    return torch.cat([last(hidden, batch), cls(hidden, batch)], dim=-1)


@register_method("MEAN")
def mean(hidden: Tensor, batch: PackedBatch) -> Tensor:
    if (pooled := pool_rows(hidden, "MEAN", batch.cu_seqlens, batch.num_unpooled)) is not None:
        return pooled
    return _sum_by_sequence(hidden, batch) / _count_pooled_tokens(batch)


@register_method("IMAGE_MEAN")
def image_mean(hidden: Tensor, batch: PackedBatch) -> Tensor:
    """Return the mean of an image's tokens and of the tokens around it (its start and end); of texts, of all tokens."""
    if batch.images is None:
        return mean(hidden, batch)
    is_image = torch.zeros_like(batch.segment_ids, dtype=torch.bool)
    is_image[batch.images.token_indices] = True
    is_neighbour = batch.segment_ids[1:] == batch.segment_ids[:-1]
    pooled = is_image.clone()
    pooled[1:] |= is_image[:-1] & is_neighbour
    pooled[:-1] |= is_image[1:] & is_neighbour
    has_image = torch.zeros(batch.num_seqs, dtype=torch.bool, device=batch.device)
    has_image[batch.segment_ids[batch.images.token_indices]] = True
    of_text = ~has_image[batch.segment_ids]
    if batch.num_unpooled is not None:
        of_text &= _make_pooled_mask(batch, batch.num_unpooled)
    weights = (pooled | of_text).float()[:, None]
    total = torch.segment_reduce(hidden.float() * weights, "sum", offsets=batch.cu_seqlens)
    return total / torch.segment_reduce(weights, "sum", offsets=batch.cu_seqlens)


@register_method("TEXT_MEAN")
def text_mean(hidden: Tensor, batch: PackedBatch) -> Tensor:
    """Return the mean of a text; of an image without text the last row, where its tower puts the pooled state."""
    if batch.images is None:
        return mean(hidden, batch)
    has_image = torch.zeros(batch.num_seqs, 1, dtype=torch.bool, device=batch.device)
    has_image[batch.segment_ids[batch.images.token_indices]] = True
    return torch.where(has_image, last(hidden, batch).float(), mean(hidden, batch).float())


def mean_of_rows(hidden: Tensor, batch: PackedBatch) -> Tensor:
    """Return the mean as MEAN does, on a CPU seven times as fast; other models keep the order of their sums."""
    rows = torch.arange(batch.num_tokens, device=batch.device)
    return F.embedding_bag(rows, hidden.float(), batch.cu_seqlens[:-1], mode="mean")


def mean_without(hidden: Tensor, batch: PackedBatch, token_ids: tuple[int, ...]) -> Tensor:
    """Return the mean without the states of some tokens; zero for a sequence of only these."""
    mask = torch.isin(batch.token_ids, torch.tensor(token_ids, device=batch.device), invert=True).float()[:, None]
    return _sum_by_sequence(hidden.float() * mask, batch) / _sum_by_sequence(mask, batch).clamp(min=1)


@register_method("MEAN_SQRT_LEN")
def mean_sqrt_len(hidden: Tensor, batch: PackedBatch) -> Tensor:
    return _sum_by_sequence(hidden, batch) / _count_pooled_tokens(batch).sqrt()


@register_method("WEIGHTEDMEAN")
def weighted_mean(hidden: Tensor, batch: PackedBatch) -> Tensor:
    """Return the mean weighted by position in the sequence, counted from 1."""
    weights = (batch.positions + 1).float()[:, None]
    return _sum_by_sequence(hidden.float() * weights, batch) / _sum_by_sequence(weights, batch)


@register_method("MAX")
def max_pool(hidden: Tensor, batch: PackedBatch) -> Tensor:
    wide = hidden.float()
    if batch.num_unpooled is not None:
        wide = wide.masked_fill(~_make_pooled_mask(batch, batch.num_unpooled)[:, None], -torch.inf)
    return torch.segment_reduce(wide, "max", offsets=batch.cu_seqlens)


def _sum_by_sequence(hidden: Tensor, batch: PackedBatch) -> Tensor:
    # sums of thousands of values lose precision in 16 bits: accumulate in float32
    if can_use_triton(hidden) and hidden.stride(-1) == 1:
        from cenote.kernels.gpu.segment_sum import sum_by_sequence

        return sum_by_sequence(hidden, batch.cu_seqlens, batch.num_unpooled)
    wide = hidden.float()
    if batch.num_unpooled is not None:
        wide = wide * _make_pooled_mask(batch, batch.num_unpooled)[:, None]
    return torch.segment_reduce(wide, "sum", offsets=batch.cu_seqlens)


def _count_pooled_tokens(batch: PackedBatch) -> Tensor:
    """Return the number of pooled tokens of each sequence, [num_seqs, 1]."""
    count = batch.seq_lens if batch.num_unpooled is None else batch.seq_lens - batch.num_unpooled
    return count.float()[:, None]


def _make_pooled_mask(batch: PackedBatch, num_unpooled: Tensor) -> Tensor:
    """Return a mask of the pooled tokens, [tokens]."""
    return batch.positions >= num_unpooled[batch.segment_ids]
