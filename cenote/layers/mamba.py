"""Mamba: a recurrent mixer whose states every token chooses how to use."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.kernels.selective_scan import selective_scan
from cenote.layers.convolution import ShortConvolution
from cenote.layers.linear import Linear
from cenote.layers.norm import make_norm
from cenote.layers.rotary import PositionInfo
from cenote.layers.spec import BackboneSpec
from cenote.packed_batch import PackedBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSpec:
    channels: int
    state_size: int  # of every channel
    dt_rank: int  # of the matrix that makes the steps
    conv_kernel_size: int  # of the convolution, in tokens
    bias: bool
    conv_bias: bool


class Mamba(nn.Module):
    """A state for every channel, that each token lets fade, writes to and reads from as it chooses."""

    def __init__(self, spec: BackboneSpec, mamba_spec: MambaSpec) -> None:
        super().__init__()
        channels = mamba_spec.channels
        self.projection_sizes = [mamba_spec.dt_rank, mamba_spec.state_size, mamba_spec.state_size]
        self.into = Linear(spec.hidden_size, 2 * channels, bias=mamba_spec.bias)
        self.conv = ShortConvolution(channels, mamba_spec.conv_kernel_size, bias=mamba_spec.conv_bias)
        self.choose = Linear(channels, sum(self.projection_sizes), bias=False)
        self.step_norm, self.write_norm, self.read_norm = (make_norm(spec, width) for width in self.projection_sizes)
        self.step = Linear(mamba_spec.dt_rank, channels, bias=True)
        self.log_rate = nn.Parameter(torch.empty(channels, mamba_spec.state_size))
        self.skip = nn.Parameter(torch.empty(channels))
        self.project = Linear(channels, spec.hidden_size, bias=mamba_spec.bias)

    def forward(self, x: Tensor, batch: PackedBatch, position_info: PositionInfo) -> Tensor:
        x, gate = self.into(x).chunk(2, dim=-1)
        x = F.silu(self.conv(x, batch))
        step, write, read = self.choose(x).split(self.projection_sizes, dim=-1)
        step, write, read = self.step(self.step_norm(step)), self.write_norm(write), self.read_norm(read)
        # errors would build up from token to token: the states are float32 whatever the model runs in
        wide = x.float()
        rate = -torch.exp(self.log_rate.float())
        mixed = selective_scan(wide, F.softplus(step.float()), rate, write.float(), read.float(), batch)
        mixed = (mixed + wide * self.skip.float()) * F.silu(gate.float())
        return self.project(mixed.to(x.dtype))  # type: ignore[no-any-return]
