"""Packed attention: what a kernel takes, and which one a device gets."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from cenote.batch import PackedBatch
from cenote.kernels import flash, sdpa


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


def choose(device: torch.device, dtype: torch.dtype) -> AttentionKernel:
    """Flash attention over packed sequences where the device has it, otherwise runs of equal lengths."""
    if device.type == "cuda" and dtype in (torch.float16, torch.bfloat16) and flash.available():
        return flash.attention
    return sdpa.attention
