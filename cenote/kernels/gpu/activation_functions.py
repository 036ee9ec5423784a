"""Activation functions for Triton kernels: fast approximations, exact to the precision of the output dtype."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def gelu(x):
    # erf takes as long as the memory access; x times a logistic function of a polynomial is exact to 1/14 of a
    # bfloat16 rounding step
    clipped = tl.minimum(tl.maximum(x, -6.0), 6.0)
    square = clipped * clipped
    power = 7.65037396e-07 * square - 2.10498154e-05
    power = power * square - 5.99595759e-04
    power = power * square + 7.40373041e-02
    power = power * square + 1.59471872
    return x / (1.0 + tl.exp2(-LOG2E * clipped * power))


@triton.jit
def gelu_tanh(x):
    # 0.5 (1 + tanh y) is a logistic function of 2 y
    return x / (1.0 + tl.exp2(-2.0 * LOG2E * 0.7978845608028654 * (x + 0.044715 * x * x * x)))


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp2(-LOG2E * x))


@triton.jit
def quick_gelu(x):
    return x / (1.0 + tl.exp2(-1.702 * LOG2E * x))


@triton.jit
def approx_gelu(x):
    # one instruction of the special function unit with 11 bits of precision: enough for fp8, which has 4
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    tanh = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [inner], tl.float32, is_pure=True, pack=1)
    return 0.5 * x * (1.0 + tanh)


@triton.jit
def activate(x, NAME: tl.constexpr):
    if NAME == "gelu":
        return gelu(x)
    elif NAME == "gelu_tanh":
        return gelu_tanh(x)
    elif NAME == "approx_gelu":
        return approx_gelu(x)
    elif NAME == "silu":
        return silu(x)
    elif NAME == "quick_gelu":
        return quick_gelu(x)
    else:
        tl.static_assert(NAME == "relu")
        return tl.maximum(x, 0.0)
