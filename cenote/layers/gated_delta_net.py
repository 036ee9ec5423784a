"""Linear attention by the gated delta rule: a matrix for every head, in which each token corrects what it finds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.kernels.delta_rule import DeltaRuleInputs, gated_delta_rule
from cenote.layers.convolution import ShortConvolution
from cenote.layers.linear import Linear
from cenote.layers.norm import RMSNorm
from cenote.layers.rotary import PositionInfo
from cenote.layers.spec import BackboneSpec
from cenote.packed_batch import PackedBatch

L2_NORM_EPS = 1e-6  # added to the square of a query's or a key's length


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNetSpec:
    num_key_heads: int
    num_value_heads: int  # a multiple of key_heads: neighbours share a query and a key
    key_head_dim: int  # of one head
    value_head_dim: int
    conv_kernel_size: int  # of the convolution, in tokens


class GatedDeltaNet(nn.Module):
    """Causal whatever the layers around it are: a token knows those before it by the state they leave."""

    float32_params = ("log_rate", "step_bias")  # their exponentials are multiplied from token to token

    def __init__(self, spec: BackboneSpec, delta_spec: GatedDeltaNetSpec) -> None:
        super().__init__()
        self.delta_spec = delta_spec
        keys, values = (
            delta_spec.num_key_heads * delta_spec.key_head_dim,
            delta_spec.num_value_heads * delta_spec.value_head_dim,
        )
        self.qkv_sizes = [keys, keys, values]
        self.projection_sizes = [sum(self.qkv_sizes), values, delta_spec.num_value_heads, delta_spec.num_value_heads]
        self.into = Linear(spec.hidden_size, sum(self.projection_sizes), bias=False)  # mixed, gate, strength, step
        self.conv = ShortConvolution(self.projection_sizes[0], delta_spec.conv_kernel_size, bias=False)
        self.log_rate = nn.Parameter(torch.empty(delta_spec.num_value_heads))
        self.step_bias = nn.Parameter(torch.empty(delta_spec.num_value_heads))
        self.norm = RMSNorm(delta_spec.value_head_dim, spec.norm_eps)
        self.project = Linear(values, spec.hidden_size, bias=False)
        self.bytes_per_token = 4 * 8 * self.projection_sizes[0]  # at the widest moment, chunks included: measured

    def forward(self, x: Tensor, batch: PackedBatch, position_info: PositionInfo) -> Tensor:
        mixed, gate, strength, step = self.into(x).split(self.projection_sizes, dim=-1)
        # errors would build up from token to token: the states are float32 whatever the model runs in
        mixed = F.silu(self.conv(mixed, batch)).float()
        query, key, value = mixed.split(self.qkv_sizes, dim=-1)  # type: ignore[no-untyped-call]
        heads, key_size, value_size = (
            self.delta_spec.num_key_heads,
            self.delta_spec.key_head_dim,
            self.delta_spec.value_head_dim,
        )
        query, key = (l2_normalize(part.unflatten(-1, (heads, key_size))) for part in (query, key))
        log_decay = -self.log_rate.exp() * F.softplus(step.float() + self.step_bias)
        rule = DeltaRuleInputs(
            query=query * key_size**-0.5,
            key=key,
            value=value.unflatten(-1, (heads, -1, value_size)),
            log_decay=log_decay.view(len(x), heads, -1),
            beta=strength.float().sigmoid().view(len(x), heads, -1),
        )
        read = self.norm(gated_delta_rule(rule, batch).to(x.dtype)).flatten(1)
        return self.project(read * F.silu(gate))  # type: ignore[no-any-return]


def l2_normalize(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_NORM_EPS)
