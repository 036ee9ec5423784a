"""How the states of a sequence become one vector."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cenote.kernels.gpu.triton_support import usable
from cenote.packed_batch import PackedBatch
from cenote.utils.registry import Registry

Method = Callable[[Tensor, PackedBatch], Tensor]  # [tokens, hidden] -> [size, hidden]
METHODS: Registry[Method] = Registry("pooling method")
method = METHODS.register


@method("CLS")
def cls(hidden: Tensor, batch: PackedBatch) -> Tensor:
    """The first token that takes part; behind a prompt that is left out it is the text's own first."""
    first = batch.offsets[:-1]
    return hidden[first if batch.skip is None else first + batch.skip]


@method("LAST")
def last(hidden: Tensor, batch: PackedBatch) -> Tensor:
    return hidden[batch.offsets[1:] - 1]


@method("MEAN")
def mean(hidden: Tensor, batch: PackedBatch) -> Tensor:
    return _sum(hidden, batch) / _count(batch)


@method("MEAN_SQRT_LEN")
def mean_sqrt_len(hidden: Tensor, batch: PackedBatch) -> Tensor:
    return _sum(hidden, batch) / _count(batch).sqrt()


@method("WEIGHTEDMEAN")
def weighted_mean(hidden: Tensor, batch: PackedBatch) -> Tensor:
    """Later tokens count more: the weight of a token is its place in the sequence, from 1."""
    places = (batch.positions + 1).float()[:, None]
    return _sum(hidden.float() * places, batch) / _sum(places, batch)


@method("MAX")
def maximum(hidden: Tensor, batch: PackedBatch) -> Tensor:
    wide = hidden.float()
    if batch.skip is not None:
        wide = wide.masked_fill(~_kept(batch, batch.skip)[:, None], -torch.inf)
    return torch.segment_reduce(wide, "max", offsets=batch.offsets)


def _sum(hidden: Tensor, batch: PackedBatch) -> Tensor:
    # thousands of values are added up: accumulate in float32 whatever the model runs in
    if usable(hidden) and hidden.stride(-1) == 1:
        from cenote.kernels.gpu.segment_sum import sum_by_sequence

        return sum_by_sequence(hidden, batch.offsets, batch.skip)
    wide = hidden.float()
    if batch.skip is not None:
        wide = wide * _kept(batch, batch.skip)[:, None]
    return torch.segment_reduce(wide, "sum", offsets=batch.offsets)


def _count(batch: PackedBatch) -> Tensor:
    """[size, 1], the tokens that take part."""
    count = batch.lengths if batch.skip is None else batch.lengths - batch.skip
    return count.float()[:, None]


def _kept(batch: PackedBatch, skip: Tensor) -> Tensor:
    """[tokens], whether a token takes part."""
    return batch.positions >= skip[batch.owner]
