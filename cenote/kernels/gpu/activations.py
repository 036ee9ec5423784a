"""Fused gated and plain activations in Triton, optionally with per-row fp8 output."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cenote.kernels.gpu.activation_functions import activate
from cenote.kernels.gpu.fp8_quantize import QuantizedRows, quantize_row
from cenote.kernels.gpu.triton_support import FP8_MAX


def act_and_mul(gate_and_up: Tensor, activation: str) -> Tensor:
    """Return activation(gate) * up: [rows, 2 * width] -> [rows, width]."""
    rows, width = gate_and_up.shape[0], gate_and_up.shape[-1] // 2
    out = torch.empty(rows, width, dtype=gate_and_up.dtype, device=gate_and_up.device)
    block = min(1024, triton.next_power_of_2(width))
    _act_and_mul_kernel[(rows, triton.cdiv(width, block))](gate_and_up, out, width, activation, block, num_warps=4)
    return out


def activate_(x: Tensor, activation: str) -> Tensor:
    """Apply the activation to a contiguous tensor in place."""
    _activate_kernel[(triton.cdiv(x.numel(), 1024),)](x, x.numel(), activation, 1024, num_warps=4)
    return x


def activate_fp8(x: Tensor, activation: str | None, *, is_gated: bool = False) -> QuantizedRows:
    """Return activation(x), or activation(gate) * up of its two halves, in fp8 with one scale per row."""
    rows, width = x.shape[0], x.shape[-1] // 2 if is_gated else x.shape[-1]
    values = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(width)
    name = {None: "none", "gelu": "approx_gelu", "gelu_tanh": "approx_gelu"}.get(activation, activation)
    num_warps = max(1, min(16, block // 2048))
    _activate_fp8_kernel[(rows,)](x, values, scales, width, name, is_gated, FP8_MAX, block, num_warps=num_warps)
    return QuantizedRows(values, scales)


@triton.jit
def _act_and_mul_kernel(X, Out, WIDTH: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    gate = tl.load(X + row * 2 * WIDTH + column, mask=inside).to(tl.float32)
    up = tl.load(X + row * 2 * WIDTH + WIDTH + column, mask=inside).to(tl.float32)
    tl.store(Out + row * WIDTH + column, activate(gate, ACTIVATION) * up, mask=inside)


@triton.jit
def _activate_kernel(X, COUNT, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < COUNT
    x = tl.load(X + index, mask=inside).to(tl.float32)
    tl.store(X + index, activate(x, ACTIVATION), mask=inside)


@triton.jit
def _activate_fp8_kernel(
    X,
    Values,
    Scales,
    WIDTH: tl.constexpr,
    ACTIVATION: tl.constexpr,
    IS_GATED: tl.constexpr,
    FP8_LIMIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    x_ptrs = X + row * (2 * WIDTH if IS_GATED else WIDTH) + column
    x = tl.load(x_ptrs, mask=inside, other=0.0).to(tl.float32)
    if ACTIVATION != "none":
        x = activate(x, ACTIVATION)
    if IS_GATED:
        x *= tl.load(x_ptrs + WIDTH, mask=inside, other=0.0).to(tl.float32)
    values, scale = quantize_row(x, FP8_LIMIT)
    tl.store(Values + row * WIDTH + column, values.to(Values.dtype.element_ty), mask=inside)
    tl.store(Scales + row, scale)
