"""Short depthwise convolutions over a packed batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cenote.kernels.gpu.triton_support import can_use_triton
from cenote.layers.linear import Linear
from cenote.layers.rotary import PositionInfo
from cenote.layers.spec import BackboneSpec
from cenote.packed_batch import PackedBatch


class ShortConvolution(nn.Module):
    """Depthwise convolution within each sequence, causal or centred; tokens of other sequences count as 0."""

    def __init__(self, channels: int, kernel_size: int, *, bias: bool, causal: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, kernel_size))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None
        self.center_tap = kernel_size - 1 if causal else kernel_size // 2  # the tap of the token itself
        self.causal = self.center_tap == kernel_size - 1

    def forward(self, x: Tensor, batch: PackedBatch) -> Tensor:
        if self.causal and can_use_triton(x):
            from cenote.kernels.gpu.convolution import causal_conv1d

            return causal_conv1d(x, self.weight, self.bias, batch.positions)
        taps = self.weight[:, 0].float().unbind(-1)  # summed in float32, rounded once
        out = x * taps[self.center_tap]
        for tap, weight in enumerate(taps):
            distance = abs(tap - self.center_tap)
            if not 0 < distance < batch.max_seqlen:
                continue
            same_seq = (batch.segment_ids[distance:] == batch.segment_ids[:-distance])[:, None]
            # torch.where instead of a product with 0: infinity in an adjacent sequence must not become NaN here
            if tap < self.center_tap:
                out[distance:].addcmul_(torch.where(same_seq, x[:-distance], 0), weight)
            else:
                out[:-distance].addcmul_(torch.where(same_seq, x[distance:], 0), weight)
        return (out if self.bias is None else out + self.bias.float()).to(x.dtype)


class GatedConvolution(nn.Module):
    """project(conv(gate_in * x) * gate_out), with both gates and x from one projection."""

    def __init__(self, spec: BackboneSpec, kernel_size: int, *, bias: bool) -> None:
        super().__init__()
        self.into = Linear(spec.hidden_size, 3 * spec.hidden_size, bias=bias)
        self.conv = ShortConvolution(spec.hidden_size, kernel_size, bias=bias, causal=spec.causal)
        self.project = Linear(spec.hidden_size, spec.hidden_size, bias=bias)

    def forward(self, x: Tensor, batch: PackedBatch, position_info: PositionInfo) -> Tensor:
        if batch.attended_lens_cpu is not None:  # unattended tokens must not affect others here either
            attended = torch.tensor(batch.attended_lens_cpu, device=x.device)[batch.segment_ids]
            x = x.masked_fill((batch.positions >= attended)[:, None], 0)
        gate_in, gate_out, x = self.into(x).chunk(3, dim=-1)
        return self.project(gate_out * self.conv(gate_in * x, batch))  # type: ignore[no-any-return]
