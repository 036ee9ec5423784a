"""Linear attention by the gated delta rule: a matrix for every head, in which each token corrects what it finds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.kernels.delta_rule import Rule, gated_delta_rule
from cenote.layers.convolution import ShortConvolution
from cenote.layers.linear import Linear
from cenote.layers.norm import RMSNorm
from cenote.layers.rotary import Place
from cenote.layers.spec import BackboneSpec
from cenote.packed_batch import PackedBatch

LENGTH_EPS = 1e-6  # added to the square of a query's or a key's length


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSpec:
    key_heads: int
    value_heads: int  # a multiple of key_heads: neighbours share a query and a key
    key_size: int  # of one head
    value_size: int
    width: int  # of the convolution, in tokens


class DeltaAttention(nn.Module):
    """Causal whatever the layers around it are: a token knows those before it by the state they leave."""

    float32 = ("log_rate", "step_bias")  # their exponentials are multiplied from token to token

    def __init__(self, spec: BackboneSpec, delta: DeltaSpec) -> None:
        super().__init__()
        self.delta = delta
        keys, values = delta.key_heads * delta.key_size, delta.value_heads * delta.value_size
        self.mixed_widths = [keys, keys, values]
        self.widths = [sum(self.mixed_widths), values, delta.value_heads, delta.value_heads]
        self.into = Linear(spec.hidden_size, sum(self.widths), bias=False)  # mixed, gate, strength, step
        self.conv = ShortConvolution(self.widths[0], delta.width, bias=False)
        self.log_rate = nn.Parameter(torch.empty(delta.value_heads))
        self.step_bias = nn.Parameter(torch.empty(delta.value_heads))
        self.norm = RMSNorm(delta.value_size, spec.norm_eps)
        self.project = Linear(values, spec.hidden_size, bias=False)
        self.bytes_per_token = 4 * 8 * self.widths[0]  # at the widest moment, chunks included: measured

    def forward(self, x: Tensor, batch: PackedBatch, place: Place) -> Tensor:
        mixed, gate, strength, step = self.into(x).split(self.widths, dim=-1)
        # errors would build up from token to token: the states are float32 whatever the model runs in
        mixed = F.silu(self.conv(mixed, batch)).float()
        query, key, value = mixed.split(self.mixed_widths, dim=-1)  # type: ignore[no-untyped-call]
        heads, key_size, value_size = self.delta.key_heads, self.delta.key_size, self.delta.value_size
        query, key = (of_length_one(part.unflatten(-1, (heads, key_size))) for part in (query, key))
        log_decay = -self.log_rate.exp() * F.softplus(step.float() + self.step_bias)
        rule = Rule(
            query=query * key_size**-0.5,
            key=key,
            value=value.unflatten(-1, (heads, -1, value_size)),
            log_decay=log_decay.view(len(x), heads, -1),
            strength=strength.float().sigmoid().view(len(x), heads, -1),
        )
        read = self.norm(gated_delta_rule(rule, batch).to(x.dtype)).flatten(1)
        return self.project(read * F.silu(gate))  # type: ignore[no-any-return]


def of_length_one(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + LENGTH_EPS)
