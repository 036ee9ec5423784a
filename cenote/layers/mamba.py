"""Mamba: a recurrent mixer whose states every token chooses how to use."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.kernels.selective_scan import selective_scan
from cenote.layers.convolution import ShortConvolution
from cenote.layers.linear import Linear
from cenote.layers.norm import norm
from cenote.layers.rotary import Place
from cenote.layers.spec import BackboneSpec
from cenote.packed_batch import PackedBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSpec:
    channels: int
    states: int  # of every channel
    rank: int  # of the matrix that makes the steps
    width: int  # of the convolution, in tokens
    bias: bool
    conv_bias: bool


class Mamba(nn.Module):
    """A state for every channel, that each token lets fade, writes to and reads from as it chooses."""

    def __init__(self, spec: BackboneSpec, mamba: MambaSpec) -> None:
        super().__init__()
        channels = mamba.channels
        self.widths = [mamba.rank, mamba.states, mamba.states]
        self.into = Linear(spec.hidden_size, 2 * channels, bias=mamba.bias)
        self.conv = ShortConvolution(channels, mamba.width, bias=mamba.conv_bias)
        self.choose = Linear(channels, sum(self.widths), bias=False)
        self.step_norm, self.write_norm, self.read_norm = (norm(spec, width) for width in self.widths)
        self.step = Linear(mamba.rank, channels, bias=True)
        self.log_rate = nn.Parameter(torch.empty(channels, mamba.states))
        self.skip = nn.Parameter(torch.empty(channels))
        self.project = Linear(channels, spec.hidden_size, bias=mamba.bias)

    def forward(self, x: Tensor, batch: PackedBatch, place: Place) -> Tensor:
        x, gate = self.into(x).chunk(2, dim=-1)
        x = F.silu(self.conv(x, batch))
        step, write, read = self.choose(x).split(self.widths, dim=-1)
        step, write, read = self.step(self.step_norm(step)), self.write_norm(write), self.read_norm(read)
        # errors would build up from token to token: the states are float32 whatever the model runs in
        wide = x.float()
        rate = -torch.exp(self.log_rate.float())
        mixed = selective_scan(wide, F.softplus(step.float()), rate, write.float(), read.float(), batch)
        mixed = (mixed + wide * self.skip.float()) * F.silu(gate.float())
        return self.project(mixed.to(x.dtype))  # type: ignore[no-any-return]
