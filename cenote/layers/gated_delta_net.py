"""Gated DeltaNet: linear attention with the gated delta rule."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.kernels.delta_rule import DeltaRuleInputs, gated_delta_rule
from cenote.layers.convolution import ShortConvolution
from cenote.layers.linear import Linear
from cenote.layers.norm import RMSNorm
from cenote.layers.rotary import PositionInfo
from cenote.layers.spec import BackboneSpec, GatedDeltaNetSpec
from cenote.packed_batch import PackedBatch

L2_NORM_EPS = 1e-6  # added to the squared norm of queries and keys


class GatedDeltaNet(nn.Module):
    """Recurrent mixer, causal regardless of the spec: the state carries the preceding tokens."""

    float32_params = ("log_rate", "step_bias")  # errors in the decay accumulate from token to token

    def __init__(self, spec: BackboneSpec, delta_spec: GatedDeltaNetSpec) -> None:
        super().__init__()
        self.delta_spec = delta_spec
        key_width, value_width = (
            delta_spec.num_key_heads * delta_spec.key_head_dim,
            delta_spec.num_value_heads * delta_spec.value_head_dim,
        )
        self.qkv_sizes = [key_width, key_width, value_width]
        self.projection_sizes = [
            sum(self.qkv_sizes),
            value_width,
            delta_spec.num_value_heads,
            delta_spec.num_value_heads,
        ]
        self.into = Linear(spec.hidden_size, sum(self.projection_sizes), bias=False)  # qkv, gate, beta, dt
        self.conv = ShortConvolution(self.projection_sizes[0], delta_spec.conv_kernel_size, bias=False)
        self.log_rate = nn.Parameter(torch.empty(delta_spec.num_value_heads))
        self.step_bias = nn.Parameter(torch.empty(delta_spec.num_value_heads))
        self.norm = RMSNorm(delta_spec.value_head_dim, spec.norm_eps)
        self.project = Linear(value_width, spec.hidden_size, bias=False)
        self.bytes_per_token = 4 * 8 * self.projection_sizes[0]  # measured peak, chunks included

    def forward(self, x: Tensor, batch: PackedBatch, position_info: PositionInfo) -> Tensor:
        qkv, gate, beta, dt = self.into(x).split(self.projection_sizes, dim=-1)
        # errors would accumulate from token to token: the states are float32 for every model dtype
        qkv = F.silu(self.conv(qkv, batch)).float()
        query, key, value = qkv.split(self.qkv_sizes, dim=-1)  # type: ignore[no-untyped-call]
        heads, key_size, value_size = (
            self.delta_spec.num_key_heads,
            self.delta_spec.key_head_dim,
            self.delta_spec.value_head_dim,
        )
        query, key = (l2_normalize(part.unflatten(-1, (heads, key_size))) for part in (query, key))
        log_decay = -self.log_rate.exp() * F.softplus(dt.float() + self.step_bias)
        inputs = DeltaRuleInputs(
            query=query * key_size**-0.5,
            key=key,
            value=value.unflatten(-1, (heads, -1, value_size)),
            log_decay=log_decay.view(len(x), heads, -1),
            beta=beta.float().sigmoid().view(len(x), heads, -1),
        )
        out = self.norm(gated_delta_rule(inputs, batch).to(x.dtype)).flatten(1)
        return self.project(out * F.silu(gate))  # type: ignore[no-any-return]


def l2_normalize(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_NORM_EPS)
