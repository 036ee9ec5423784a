"""Linear layer with fused activation on a GPU: one cuBLAS kernel, or a matmul and an in-place activation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from cenote.kernels.gpu.triton_support import can_use_triton

# cuBLAS has GELU in its tanh form only. It differs from the erf form by less than 0.0005, a tenth of the rounding error
# of bfloat16 near 1, and its input is not rounded first, so the result is more accurate than two separate kernels.
# float16 has three more bits of precision and uses the exact activation of the model.
FUSED_ACTIVATIONS = {torch.bfloat16: ("gelu", "gelu_tanh", "relu"), torch.float16: ("gelu_tanh", "relu")}


def fused_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor | None:
    """Return activation(x W' + b), or None if there is no fused kernel for these tensors."""
    if activation == "quick_gelu" and can_use_triton(x):  # three kernels in plain torch
        from cenote.kernels.gpu.activations import activate_

        return activate_(F.linear(x, weight, bias), activation)
    if not x.is_cuda or bias is None or x.ndim != 2 or activation not in FUSED_ACTIVATIONS.get(x.dtype, ()):
        return None
    return torch._addmm_activation(bias, x, weight.t(), use_gelu=activation != "relu")
