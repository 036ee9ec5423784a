"""Residual add followed by LayerNorm or RMSNorm, fused where the device has a kernel for it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from cenote.kernels import native_rows
from cenote.kernels.gpu.triton_support import can_use_triton


def add_norm(
    residual: Tensor,
    branch: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    rms: bool,
    offset: float = 0.0,
    return_residual: bool = True,
    output_fp8: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return residual + branch and its layer norm, or its RMS norm with `offset` added to the weight.

    Without `return_residual` the first is undefined. With `output_fp8` on a GPU, the normalized tensor has its fp8
    quantization as attribute `fp8` for the next layer.
    """
    tensors, options = (residual, branch, weight, bias), (rms, offset, return_residual)
    if can_use_triton(residual):
        from cenote.kernels.gpu.norms import add_norm as add_norm_on_gpu

        return add_norm_on_gpu(*tensors, eps, *options, output_fp8=output_fp8)
    if native_rows.supports(*tensors):
        return native_rows.add_norm(*tensors, eps, *options)
    total = residual if branch is None else residual + branch
    if not rms:
        return total, F.layer_norm(total, total.shape[-1:], weight, bias, eps)
    assert weight is not None, "an RMS norm has a weight"
    # squares in bfloat16 lose too much precision: compute the statistics in float32
    normed = total.float()
    normed = normed * torch.rsqrt(normed.square().mean(-1, keepdim=True) + eps)
    if offset:  # a weight near 0 keeps its precision only if the offset is added in float32 as well
        return total, (normed * (weight.float() + offset)).to(total.dtype)
    return total, weight * normed.to(total.dtype)
