"""Activation functions by name, and the kernels that apply them to gated states or to the results of a product."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from cenote.kernels import native_rows
from cenote.kernels.cpu.library import ACTIVATION_CODES
from cenote.kernels.gpu.triton_support import can_use_triton


def _laplace(x: Tensor) -> Tensor:
    """Bounded approximation of the squared ReLU, of MEGA."""
    return 0.5 * (1.0 + torch.erf((x - 0.707107) / (0.282095 * 2.0**0.5)))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * F.sigmoid(1.702 * x),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": F.tanh,
    "sigmoid": F.sigmoid,
    "identity": lambda x: x,
    # rare, and without kernels of their own
    "gelu_10": lambda x: F.gelu(x).clamp(-10, 10),
    "hardswish": F.hardswish,
    "laplace": _laplace,
    "leaky_relu": F.leaky_relu,
    "mish": F.mish,
    "relu2": lambda x: F.relu(x).square(),
    "relu6": F.relu6,
    "sqrtsoftplus": lambda x: F.softplus(x).sqrt(),
}
GPU_ACTIVATIONS = ("gelu", "gelu_tanh", "silu", "relu")
# cuBLAS has GELU in its tanh form only. It differs from the erf form by less than 0.0005, a tenth of the rounding error
# of bfloat16 near 1, and its input is not rounded first, so the result is more accurate than two separate kernels.
# float16 has three more bits of precision and uses the exact activation of the model.
FUSED_ACTIVATIONS = {torch.bfloat16: ("gelu", "gelu_tanh", "relu"), torch.float16: ("gelu_tanh", "relu")}


def act_and_mul(gate_and_up: Tensor, activation: str, activation_fn: Callable[[Tensor], Tensor]) -> Tensor:
    """Return activation(gate) * up (SwiGLU, GeGLU), with gate and up concatenated: [..., 2 * width] -> [..., width]."""
    if (
        can_use_triton(gate_and_up)
        and activation in GPU_ACTIVATIONS
        and gate_and_up.ndim == 2
        and gate_and_up.is_contiguous()
    ):
        from cenote.kernels.gpu.activations import act_and_mul as triton_act_and_mul

        return triton_act_and_mul(gate_and_up, activation)
    if activation in ACTIVATION_CODES and native_rows.supports(gate_and_up) and gate_and_up.shape[-1] % 32 == 0:
        return native_rows.act_and_mul(gate_and_up, activation)
    gate, up = gate_and_up.chunk(2, dim=-1)
    return activation_fn(gate) * up


def fused_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor | None:
    """Return activation(x W' + b) of a GPU's fused kernel: one of cuBLAS, or a product and an activation in place.

    None if there is none for these tensors.
    """
    if activation == "quick_gelu" and can_use_triton(x):  # three kernels in plain torch
        from cenote.kernels.gpu.activations import activate_

        return activate_(F.linear(x, weight, bias), activation)
    if not x.is_cuda or bias is None or x.ndim != 2 or activation not in FUSED_ACTIVATIONS.get(x.dtype, ()):
        return None
    return torch._addmm_activation(bias, x, weight.t(), use_gelu=activation != "relu")
