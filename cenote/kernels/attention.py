"""Attention over a packed batch: the kernel interface and the selection of a kernel."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from cenote.kernels import amx_attention, eager_attention, flash, native_library, sdpa
from cenote.kernels.gpu.triton_support import HALF_DTYPES, can_use_triton
from cenote.packed_batch import PackedBatch


class AttentionKernel(Protocol):
    """Attention of queries [tokens, heads, d] to keys and values [tokens, kv_heads, d] of the same sequence."""

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
    """Compute attention with the fastest kernel that supports all the options."""
    prefixes = batch.shared_prefixes
    if prefixes is not None:  # kernels need whole sequences; the rest of a layer runs on shared prefixes only once
        query, key, value = prefixes.unfold(query), prefixes.unfold(key), prefixes.unfold(value)
        batch = prefixes.unfolded
    if softcap is None and bias is None and sinks is None and batch.attended_lens_cpu is None:
        out = select_kernel(query)(query, key, value, batch, causal=causal, window=window, scale=scale)
    else:
        out = eager_attention.attention(query, key, value, batch, causal, window, scale, softcap, bias, sinks)
    return out if prefixes is None else prefixes.fold(out)


def select_kernel(query: Tensor) -> AttentionKernel:
    """Return a packed kernel if the device has one for this head size and dtype, otherwise SDPA on equal lengths."""
    if query.is_cuda and query.dtype in HALF_DTYPES:
        if can_use_triton(query) and query.shape[-1] <= 128 and query.shape[-1] % 8 == 0:
            from cenote.kernels.gpu import packed_attention

            return packed_attention.attention
        if flash.supports(query) and flash.is_available():
            return flash.attention
    if query.device.type == "cpu" and amx_attention.supports(query) and native_library.is_available():
        return amx_attention.attention
    return sdpa.attention
