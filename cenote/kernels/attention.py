"""Packed attention: what a kernel takes, and which one a device gets."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from cenote.kernels import amx_attention, eager_attention, flash, sdpa
from cenote.kernels.gpu.triton_support import HALF_DTYPES, can_use_triton
from cenote.packed_batch import PackedBatch


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


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    batch: PackedBatch,
    *,
    causal: bool,
    window: int | None,
    scale: float,
    softcap: float | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """By the fastest kernel that knows all that is asked of it."""
    if (
        stems := batch.shared_prefixes
    ) is not None:  # kernels see whole sequences; all else of a layer is spared the copies
        mixed = attend(
            stems.unfold(query),
            stems.unfold(key),
            stems.unfold(value),
            stems.unfolded,
            causal=causal,
            window=window,
            scale=scale,
            softcap=softcap,
            bias=bias,
            sinks=sinks,
        )
        return stems.fold(mixed)
    if softcap is None and bias is None and sinks is None and batch.attended_lens_cpu is None:
        return select_kernel(query)(query, key, value, batch, causal=causal, window=window, scale=scale)
    return eager_attention.attention(
        query,
        key,
        value,
        batch,
        causal=causal,
        window=window,
        scale=scale,
        softcap=softcap,
        bias=bias,
        sinks=sinks,
    )


def select_kernel(query: Tensor) -> AttentionKernel:
    """Packed kernels where the device has one for these heads, otherwise runs of equal lengths."""
    if query.is_cuda and query.dtype in HALF_DTYPES:
        if can_use_triton(query) and query.shape[-1] <= 128 and query.shape[-1] % 8 == 0:
            from cenote.kernels.gpu import packed_attention

            return packed_attention.attention
        if flash.supports(query) and flash.is_available():
            return flash.attention
    if query.device.type == "cpu" and amx_attention.supports(query) and amx_attention.is_available():
        return amx_attention.attention
    return sdpa.attention
