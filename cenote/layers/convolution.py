"""A convolution of a few tokens' width over a packed batch, every channel by itself."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cenote.batch import PackedBatch


class ShortConvolution(nn.Module):
    """Over a token and those before it, or as many on either side; what lies in another sequence counts as 0."""

    def __init__(self, channels: int, width: int, *, bias: bool, causal: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, width))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None
        self.own = width - 1 if causal else width // 2  # the tap that a token itself falls on

    def forward(self, x: Tensor, batch: PackedBatch) -> Tensor:
        taps = self.weight[:, 0].float().unbind(-1)  # summed in float32, rounded once
        out = x * taps[self.own]
        for tap, weight in enumerate(taps):
            apart = abs(tap - self.own)
            if not 0 < apart < batch.max_length:
                continue
            together = (batch.owner[apart:] == batch.owner[:-apart])[:, None]
            # chosen rather than multiplied by 0: an infinity in a neighbour must not come over as a NaN
            if tap < self.own:
                out[apart:] += torch.where(together, x[:-apart], 0) * weight
            else:
                out[:-apart] += torch.where(together, x[apart:], 0) * weight
        return (out if self.bias is None else out + self.bias.float()).to(x.dtype)
