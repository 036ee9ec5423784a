"""Convolutions over a token and some before it, every channel by itself, in one pass over memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TOKEN_BLOCK, CHANNEL_BLOCK = 16, 128


def causal_conv1d(x: Tensor, weight: Tensor, bias: Tensor | None, positions: Tensor) -> Tensor:
    """[tokens, channels] by [channels, 1, width]; `positions` say how many tokens before one are of its sequence."""
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
    real, known = token < TOKENS, channel < CHANNELS
    position = tl.load(Positions + token, mask=real, other=-1)  # of what is not there, not even itself is read
    total = tl.zeros((BLOCK, BLOCK_CHANNELS), dtype=tl.float32)  # rounded once
    for tap in tl.static_range(WIDTH):
        apart = WIDTH - 1 - tap
        inside = (position >= apart)[:, None] & known[None, :]
        x = tl.load(X + (token - apart)[:, None] * stride + channel[None, :], mask=inside, other=0.0)
        weight = tl.load(Weight + channel * WIDTH + tap, mask=known, other=0.0)
        total += x.to(tl.float32) * weight.to(tl.float32)[None, :]
    if Bias is not None:
        total += tl.load(Bias + channel, mask=known, other=0.0).to(tl.float32)[None, :]
    tl.store(Out + token[:, None] * CHANNELS + channel[None, :], total, mask=real[:, None] & known[None, :])
