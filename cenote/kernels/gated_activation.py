"""Gated activations (SwiGLU, GeGLU): activation(gate) * up."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from cenote.kernels import native_rows
from cenote.kernels.cpu.library import ACTIVATION_CODES
from cenote.kernels.gpu.triton_support import can_use_triton

GPU_ACTIVATIONS = ("gelu", "gelu_tanh", "silu", "relu")


def act_and_mul(gate_and_up: Tensor, activation: str, activation_fn: Callable[[Tensor], Tensor]) -> Tensor:
    """Return activation(gate) * up, with gate and up concatenated: [..., 2 * width] -> [..., width]."""
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
