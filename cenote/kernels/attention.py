"""Packed attention: what a kernel takes, and which one a device gets."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from cenote.batch import PackedBatch
from cenote.kernels import flash, sdpa, tiles


class AttentionKernel(Protocol):
    """Queries [tokens, heads, d] against keys and values [tokens, kv_heads, d] of their own sequence."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        batch: PackedBatch,
        *,
        causal: bool,
        window: int | None,
        scale: float,
    ) -> Tensor: ...


def choose(query: Tensor) -> AttentionKernel:
    """Packed kernels where the device has one for these heads, otherwise runs of equal lengths."""
    if query.is_cuda and flash.fits(query) and flash.available():
        return flash.attention
    if query.device.type == "cpu" and tiles.fits(query) and tiles.available():
        return tiles.attention
    return sdpa.attention
