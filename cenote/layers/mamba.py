"""Mamba mixer: a selective state space model over a packed batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.kernels.selective_scan import selective_scan
from cenote.layers.convolution import ShortConvolution
from cenote.layers.linear import Linear
from cenote.layers.norm import make_norm
from cenote.layers.rotary import PositionInfo
from cenote.layers.spec import BackboneSpec, MambaSpec
from cenote.packed_batch import PackedBatch


class Mamba(nn.Module):
    """Selective scan with input-dependent dt, B and C, between a convolution and a gate."""

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
        dt, B, C = self.choose(x).split(self.projection_sizes, dim=-1)
        dt, B, C = self.step(self.step_norm(dt)), self.write_norm(B), self.read_norm(C)
        # errors would accumulate from token to token: the states are float32 for every model dtype
        x_float = x.float()
        A = -torch.exp(self.log_rate.float())
        y = selective_scan(x_float, F.softplus(dt.float()), A, B.float(), C.float(), batch)
        y = (y + x_float * self.skip.float()) * F.silu(gate.float())
        return self.project(y.to(x.dtype))  # type: ignore[no-any-return]
