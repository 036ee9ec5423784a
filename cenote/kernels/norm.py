"""Residual add followed by LayerNorm or RMSNorm, fused where the device has a kernel for it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from cenote.kernels import native_rows
from cenote.kernels.gpu.triton_support import can_use_triton


def add_layer_norm(
    residual: Tensor,
    branch: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    return_residual: bool = True,
    output_fp8: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return residual + branch and its layer norm; without `return_residual` the first is undefined.

    With `output_fp8` on a GPU, the normalized tensor has its fp8 quantization as attribute `fp8` for the next layer.
    """
    if can_use_triton(residual):
        from cenote.kernels.gpu.norms import add_norm

        return add_norm(
            residual, branch, weight, bias, eps, rms=False, return_residual=return_residual, output_fp8=output_fp8
        )
    if native_rows.supports(residual, branch, weight, bias):
        return native_rows.add_norm(residual, branch, weight, bias, eps, rms=False, return_residual=return_residual)
    total = residual if branch is None else residual + branch
    return total, F.layer_norm(total, total.shape[-1:], weight, bias, eps)


def add_rms_norm(
    residual: Tensor,
    branch: Tensor | None,
    weight: Tensor,
    eps: float,
    offset: float = 0.0,
    *,
    return_residual: bool = True,
    output_fp8: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return residual + branch and its RMS norm, with `offset` added to the weight."""
    if can_use_triton(residual):
        from cenote.kernels.gpu.norms import add_norm

        return add_norm(
            residual,
            branch,
            weight,
            None,
            eps,
            rms=True,
            offset=offset,
            return_residual=return_residual,
            output_fp8=output_fp8,
        )
    if native_rows.supports(residual, branch, weight):
        return native_rows.add_norm(
            residual, branch, weight, None, eps, rms=True, offset=offset, return_residual=return_residual
        )
    total = residual if branch is None else residual + branch
    # squares in bfloat16 lose too much precision: compute the statistics in float32
    normed = total.float()
    normed = normed * torch.rsqrt(normed.square().mean(-1, keepdim=True) + eps)
    if offset:  # a weight near 0 keeps its precision only if the offset is added in float32 as well
        return total, (normed * (weight.float() + offset)).to(total.dtype)
    return total, weight * normed.to(total.dtype)
