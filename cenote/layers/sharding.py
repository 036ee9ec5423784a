"""Shards of parameters for tensor parallelism: which part of a parameter a rank holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn

from cenote.errors import LoadError

Ranges: TypeAlias = "tuple[tuple[int, int], ...]"  # start and end of each part, in order

MAX_RANKS = 64  # the largest number of processes that is considered


@dataclass(frozen=True, slots=True)
class Shard:
    """The ranges of one dimension of a parameter that a rank holds, one after the other."""

    dim: int
    ranges: Ranges
    full_shape: tuple[int, ...]  # of the whole parameter

    @property
    def size(self) -> int:
        return sum(end - start for start, end in self.ranges)


class ShardBuilder:
    """Shrinks the parameters of a module on the meta device to those of one rank and records their shards."""

    def __init__(self, rank: int, num_ranks: int, dtype: torch.dtype) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self.dtype = dtype  # of the weights
        self.shards: dict[nn.Parameter, Shard] = {}

    def split_range(self, size: int, what: str, row_bytes: int = 1) -> tuple[int, int]:
        """Return the range of this rank in `size` elements; raise LoadError if they cannot be split evenly.

        `row_bytes`: the bytes of a range must be a multiple of it.
        """
        possible = [
            count for count in _divisors(size) if (size // count * self.dtype.itemsize) % row_bytes == 0 or count == 1
        ]
        if self.num_ranks not in possible:
            aligned = "" if row_bytes == 1 else f" into parts of a multiple of {row_bytes} bytes"
            raise LoadError(
                f"tensor_parallel_size={self.num_ranks}: {what} {size} is not divisible by {self.num_ranks}{aligned}; "
                f"use a size that divides it: {', '.join(map(str, possible))}"
            )
        share = size // self.num_ranks
        return self.rank * share, (self.rank + 1) * share

    def split_heads(self, num_heads: int, num_kv_heads: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the ranges of query heads and of key and value heads; ranks share a KV head if there are too few."""
        queries = self.split_range(num_heads, "the number of attention heads")
        if num_kv_heads % self.num_ranks and self.num_ranks % num_kv_heads:
            sizes = [size for size in _divisors(num_heads) if num_kv_heads % size == 0 or size % num_kv_heads == 0]
            raise LoadError(
                f"tensor_parallel_size={self.num_ranks}: the {num_kv_heads} KV heads can neither be divided among "
                f"{self.num_ranks} ranks nor be repeated evenly; use one of: {', '.join(map(str, sizes))}"
            )
        if num_kv_heads >= self.num_ranks:
            return queries, self.split_range(num_kv_heads, "the number of KV heads")
        first = self.rank * num_kv_heads // self.num_ranks
        return queries, (first, first + 1)

    def shrink(self, module: nn.Module, name: str, dim: int, ranges: Ranges) -> None:
        """Replace a parameter by an empty one of the size of its shard; nothing to do if the module has none."""
        parameter = getattr(module, name)
        if parameter is None:
            return
        shard = Shard(dim, ranges, tuple(parameter.shape))
        shape = [*parameter.shape]
        shape[dim] = shard.size
        shrunk = nn.Parameter(torch.empty(shape, device=parameter.device), requires_grad=False)
        setattr(module, name, shrunk)
        self.shards[shrunk] = shard

    def split_rows(self, linear: nn.Linear, ranges: Ranges) -> None:
        """Column-parallel layer: keep some of its outputs, which are the rows of the weight."""
        self.shrink(linear, "weight", 0, ranges)
        self.shrink(linear, "bias", 0, ranges)
        linear.out_features = linear.weight.shape[0]

    def split_columns(self, linear: nn.Linear, ranges: Ranges) -> None:
        """Row-parallel layer: keep some of its inputs; the bias is that of the sum over all ranks."""
        self.shrink(linear, "weight", 1, ranges)
        linear.in_features = linear.weight.shape[1]

    def by_path(self, module: nn.Module) -> dict[str, Shard]:
        """Return the shards by the path of their parameter in the module."""
        return {path: self.shards[p] for path, p in module.named_parameters() if p in self.shards}


def scale_range(bounds: tuple[int, int], factor: int, offset: int = 0) -> tuple[int, int]:
    """Return the range of elements for a range of units of `factor` elements."""
    return offset + bounds[0] * factor, offset + bounds[1] * factor


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, min(number, MAX_RANKS) + 1) if number % size == 0]
