"""Causal depthwise convolution over a packed batch in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TOKEN_BLOCK, CHANNEL_BLOCK = 16, 128


def causal_conv1d(x: Tensor, weight: Tensor, bias: Tensor | None, positions: Tensor) -> Tensor:
    """Convolve x [tokens, channels] with weight [channels, 1, width]; `positions` start at 0 in each sequence."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    tokens, channels = x.shape
    out = torch.empty(tokens, channels, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(tokens, TOKEN_BLOCK), triton.cdiv(channels, CHANNEL_BLOCK))
    _causal_conv1d_kernel[grid](
        x,
        weight.contiguous(),
        bias,
        positions,
        out,
        tokens,
        x.stride(0),
        channels,
        weight.shape[-1],
        TOKEN_BLOCK,
        CHANNEL_BLOCK,
        num_warps=4,
    )
    return out


@triton.jit(do_not_specialize=["TOKENS"])
def _causal_conv1d_kernel(
    X,
    Weight,
    Bias,
    Positions,
    Out,
    TOKENS,
    stride,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    is_token, is_channel = token < TOKENS, channel < CHANNELS
    position = tl.load(Positions + token, mask=is_token, other=-1)  # -1: no tap is loaded for padding
    total = tl.zeros((BLOCK, BLOCK_CHANNELS), dtype=tl.float32)  # float32: the sum is rounded once
    for tap in tl.static_range(WIDTH):
        distance = WIDTH - 1 - tap
        inside = (position >= distance)[:, None] & is_channel[None, :]
        x = tl.load(X + (token - distance)[:, None] * stride + channel[None, :], mask=inside, other=0.0)
        weight = tl.load(Weight + channel * WIDTH + tap, mask=is_channel, other=0.0)
        total += x.to(tl.float32) * weight.to(tl.float32)[None, :]
    if Bias is not None:
        total += tl.load(Bias + channel, mask=is_channel, other=0.0).to(tl.float32)[None, :]
    tl.store(Out + token[:, None] * CHANNELS + channel[None, :], total, mask=is_token[:, None] & is_channel[None, :])
