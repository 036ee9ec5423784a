"""Read the shard of a parameter from a checkpoint, for a rank of a tensor-parallel model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cenote.loading.weights import CheckpointWeights, select_range
from cenote.utils.arrays import Array

if TYPE_CHECKING:
    from cenote.layers.sharding import Ranges, Shard


def read_shard(
    weights: CheckpointWeights, names: Sequence[str], make: Callable[..., Array] | None, shard: Shard
) -> list[Array]:
    """Return tensors whose concatenation along dim 0 is the shard; names and `make` are those of the whole parameter.

    Only the ranges of the shard are read, unless `make` needs whole tensors.
    """
    shapes = [weights.shape(name) for name in names]
    if make is None:
        if shard.dim == 0:
            return _read_rows(weights, names, shapes, shard.ranges)
        return [_read_ranges(weights, name, shard.dim, shard.ranges) for name in names]
    if (source := _find_source_ranges(make, shapes[0], shard)) is not None:
        dim, ranges = source
        return [derive(make, [_read_ranges(weights, name, dim, ranges) for name in names])]
    whole = derive(make, [weights.get(name, allow_indices=len(names) > 1) for name in names])
    # in memory of their own, so that the rest of the parameter is freed
    parts = [select_range(whole, shard.dim, start, end) for start, end in shard.ranges]
    return [np.concatenate(parts, axis=shard.dim)]


def derive(make: Callable[..., Array], stored: Sequence[Array]) -> Array:
    """Return the parameter that is computed from stored tensors; it may be a view of them."""
    return make(*stored)


def _read_ranges(weights: CheckpointWeights, name: str, dim: int, ranges: Ranges) -> Array:
    parts = [weights.get_range(name, dim, start, end) for start, end in ranges]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=dim)


def _read_rows(
    weights: CheckpointWeights, names: Sequence[str], shapes: Sequence[tuple[int, ...]], ranges: Ranges
) -> list[Array]:
    """Return rows of tensors that are concatenated along dim 0."""
    parts = []
    for start, end in ranges:
        offset = 0
        for name, (length, *_) in zip(names, shapes, strict=True):
            first, last = max(start - offset, 0), min(end - offset, length)
            if first < last:
                parts.append(weights.get_range(name, 0, first, last))
            offset += length
    return parts


def _find_source_ranges(
    make: Callable[..., Array], source_shape: tuple[int, ...], shard: Shard
) -> tuple[int, Ranges] | None:
    """Return the dimension and ranges of every source that give the shard; None if `make` needs whole tensors."""
    source_dims = getattr(make, "source_dims", None)
    if source_dims is None or shard.dim not in source_dims:
        return None
    dim = 0 if len(source_shape) == 1 else source_dims[shard.dim]
    length = source_shape[dim]
    shares = [
        tuple((start - first, end - first) for start, end in shard.ranges if first <= start < end <= first + length)
        for first in range(0, shard.full_shape[shard.dim], length)
    ]
    covers_all = sum(map(len, shares)) == len(shard.ranges)
    return (dim, shares[0]) if covers_all and all(share == shares[0] for share in shares) else None
