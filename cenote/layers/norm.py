"""LayerNorm and RMSNorm with a fused residual add, built from a spec."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cenote.kernels.norm import add_norm
from cenote.layers.spec import BackboneSpec


class Norm(nn.Module):
    """Base class of norms; it is the identity itself."""

    output_fp8 = False  # also return the norm in fp8 for the next linear layer; set by Fp8Quantizer

    def forward(self, x: Tensor) -> Tensor:
        return self.add_and_norm(x, None)[1]

    def add_and_norm(
        self, residual: Tensor, branch: Tensor | None, *, return_residual: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return residual + branch and its norm; without `return_residual` the first is undefined."""
        total = residual if branch is None else residual + branch
        return total, total


class WeightedNorm(Norm):
    """A norm over the width of a row, and the residual add before it, in one kernel."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    eps: float
    offset = 0.0  # added to the weight
    is_rms: bool

    def add_and_norm(
        self, residual: Tensor, branch: Tensor | None, *, return_residual: bool = True
    ) -> tuple[Tensor, Tensor]:
        return add_norm(
            *(residual, branch, self.weight, self.bias, self.eps),
            rms=self.is_rms,
            offset=self.offset,
            return_residual=return_residual,
            output_fp8=self.output_fp8,
        )


class LayerNorm(WeightedNorm):
    is_rms = False

    def __init__(self, size: int, eps: float, *, affine: bool = True, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size)) if affine else None
        self.bias = nn.Parameter(torch.empty(size)) if affine and bias else None
        self.eps = eps


class RMSNorm(WeightedNorm):
    is_rms, bias = True, None
    weight: nn.Parameter

    def __init__(self, size: int, eps: float, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps
        self.offset = offset


def make_norm(spec: BackboneSpec, size: int | None = None) -> Norm:
    """Build the norm of the spec, of width `size` or of the hidden size."""
    size = size or spec.hidden_size
    if spec.norm == "rms":
        return RMSNorm(size, spec.norm_eps, spec.norm_offset)
    return LayerNorm(size, spec.norm_eps, affine=spec.norm_affine, bias=spec.norm_bias)
