"""A linear layer and its activation in one kernel of a GPU, where cuBLAS has one, or in two that write in one place."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from cenote.kernels.gpu.triton_support import can_use_triton

# cuBLAS knows GELU in its tanh form. That is within 0.0005 of the one with erf, a tenth of what rounding to bfloat16
# takes from a number near 1, and what goes in is not rounded first: the result is nearer to the exact one than two
# steps come. float16 keeps three bits more and gets what the model says.
FUSED_ACTIVATIONS = {torch.bfloat16: ("gelu", "gelu_tanh", "relu"), torch.float16: ("gelu_tanh", "relu")}


def fused_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor | None:
    """activation(x W' + b), or None where plain torch is to do it."""
    if activation == "quick_gelu" and can_use_triton(x):  # three kernels of torch's
        from cenote.kernels.gpu.activations import activate_

        return activate_(F.linear(x, weight, bias), activation)
    if not x.is_cuda or bias is None or x.ndim != 2 or activation not in FUSED_ACTIVATIONS.get(x.dtype, ()):
        return None
    return torch._addmm_activation(bias, x, weight.t(), use_gelu=activation != "relu")
