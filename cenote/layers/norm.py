"""Layer norm and RMS norm, built from a spec."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cenote.layers.spec import BackboneSpec


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        # squares of bfloat16 lose too much: the statistics are taken in float32
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        if self.offset:  # a weight near 0 keeps its digits only if the offset is added in float32 as well
            return (wide * (self.weight.float() + self.offset)).to(x.dtype)
        return self.weight * wide.to(x.dtype)


def norm(spec: BackboneSpec, size: int | None = None) -> nn.Module:
    """The spec's norm, over the hidden states or over some other width."""
    size = size or spec.hidden_size
    if spec.norm == "rms":
        return RMSNorm(size, spec.norm_eps, spec.norm_offset)
    return nn.LayerNorm(size, eps=spec.norm_eps, bias=spec.norm_bias, elementwise_affine=spec.norm_affine)
