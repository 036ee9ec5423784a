"""Convolutions of a few tokens' width over a packed batch, every channel by itself."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cenote.kernels.gpu.triton_support import usable
from cenote.layers.linear import Linear
from cenote.layers.rotary import Place
from cenote.layers.spec import BackboneSpec
from cenote.packed_batch import PackedBatch


class ShortConvolution(nn.Module):
    """Over a token and those before it, or as many on either side; what lies in another sequence counts as 0."""

    def __init__(self, channels: int, width: int, *, bias: bool, causal: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, width))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None
        self.own = width - 1 if causal else width // 2  # the tap that a token itself falls on
        self.causal = self.own == width - 1

    def forward(self, x: Tensor, batch: PackedBatch) -> Tensor:
        if self.causal and usable(x):
            from cenote.kernels.gpu.convolution import convolve

            return convolve(x, self.weight, self.bias, batch.positions)
        taps = self.weight[:, 0].float().unbind(-1)  # summed in float32, rounded once
        out = x * taps[self.own]
        for tap, weight in enumerate(taps):
            apart = abs(tap - self.own)
            if not 0 < apart < batch.max_length:
                continue
            together = (batch.owner[apart:] == batch.owner[:-apart])[:, None]
            # chosen rather than multiplied by 0: an infinity in a neighbour must not come over as a NaN
            if tap < self.own:
                out[apart:].addcmul_(torch.where(together, x[:-apart], 0), weight)
            else:
                out[:-apart].addcmul_(torch.where(together, x[apart:], 0), weight)
        return (out if self.bias is None else out + self.bias.float()).to(x.dtype)


class GatedConvolution(nn.Module):
    """(conv(before * x) * after) out, with both gates and x from one matrix"""

    def __init__(self, spec: BackboneSpec, width: int, *, bias: bool) -> None:
        super().__init__()
        self.into = Linear(spec.hidden_size, 3 * spec.hidden_size, bias=bias)
        self.conv = ShortConvolution(spec.hidden_size, width, bias=bias, causal=spec.causal)
        self.project = Linear(spec.hidden_size, spec.hidden_size, bias=bias)

    def forward(self, x: Tensor, batch: PackedBatch, place: Place) -> Tensor:
        if batch.host_attended is not None:  # tokens that nobody sees are not seen here either
            seen = torch.tensor(batch.host_attended, device=x.device)[batch.owner]
            x = x.masked_fill((batch.positions >= seen)[:, None], 0)
        before, after, x = self.into(x).chunk(3, dim=-1)
        return self.project(after * self.conv(before * x, batch))  # type: ignore[no-any-return]
