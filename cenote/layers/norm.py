"""Layer norm and RMS norm, built from a spec."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cenote.layers.spec import BackboneSpec


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        # squares of bfloat16 lose too much: the statistics are taken in float32
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def norm(spec: BackboneSpec) -> nn.Module:
    if spec.norm == "rms":
        return RMSNorm(spec.hidden_size, spec.norm_eps)
    return nn.LayerNorm(spec.hidden_size, eps=spec.norm_eps, bias=spec.norm_bias)
