"""Linear layer of at most 32 rows in Triton; its weights are loaded while the kernel before is still running."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cenote.kernels.activations import ACTIVATIONS
from cenote.kernels.gpu.activation_functions import activate
from cenote.kernels.gpu.few_rows import MAX_ROWS, get_launch_options, is_few_rows_mode
from cenote.kernels.gpu.triton_support import HALF_DTYPES

# activations of this kernel, whose GELU is not exact enough for float16; others are applied to its result
FUSED_ACTIVATIONS = {
    torch.bfloat16: ("gelu", "gelu_tanh", "relu", "silu", "quick_gelu"),
    torch.float16: ("gelu_tanh", "relu", "silu", "quick_gelu"),
}
# a program holds its weights and all inputs in registers: more would not fit
MAX_IN_FEATURES, MAX_INPUTS = 4096, 32 * 3072
MAX_WEIGHTS = 4096 * 1024  # reading more takes so long that starting early does not matter
MIN_BLOCK = 128


class Config(NamedTuple):
    """How the weights are divided."""

    block_out: int  # outputs of a program
    block_in: int  # inputs that are multiplied at once
    num_warps: int  # each has an equal part of the block of inputs


def few_rows_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor | None:
    """Return activation(x W' + b), or None if the kernel does not support these tensors."""
    out_features, in_features = weight.shape
    is_supported = (
        x.ndim == 2
        and len(x) <= MAX_ROWS
        and _get_block_rows(len(x)) * in_features <= MAX_INPUTS
        and x.dtype in HALF_DTYPES
        and all(tensor is None or (tensor.dtype == x.dtype and tensor.is_contiguous()) for tensor in (x, weight, bias))
    )
    config = select_config(in_features, out_features) if is_supported else None
    if config is None:
        return None
    if activation is None or activation in FUSED_ACTIVATIONS[x.dtype]:
        return _launch(x, weight, bias, activation, config)
    return ACTIVATIONS[activation](_launch(x, weight, bias, None, config))


def select_config(in_features: int, out_features: int) -> Config | None:
    """Return the division that is fastest on an H200; None if the kernel cannot divide the weights."""
    is_long = in_features > 1024
    block_in = gcd(in_features, 512 if is_long else 256)
    block_out = 16 if out_features > 2048 else 8
    is_too_large = in_features > MAX_IN_FEATURES or in_features * out_features > MAX_WEIGHTS
    if is_too_large or block_in < MIN_BLOCK or out_features % block_out:
        return None
    return Config(block_out, block_in, 8 if is_long else 4)


def _get_block_rows(rows: int) -> int:
    return 16 if rows <= 16 else 32


def _launch(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, config: Config) -> Tensor:
    rows, (out_features, in_features) = len(x), weight.shape
    out = torch.empty(rows, out_features, dtype=x.dtype, device=x.device)
    _linear_kernel[(out_features // config.block_out,)](
        x,
        weight,
        bias,
        out,
        rows,
        in_features,
        out_features,
        "none" if activation is None else activation,
        _get_block_rows(rows),
        config.block_out,
        config.block_in // config.num_warps,
        config.num_warps,
        in_features // config.block_in,
        is_few_rows_mode(),
        num_warps=config.num_warps,
        **get_launch_options(),
    )
    return out


@triton.jit
def _linear_kernel(
    X,
    Weight,
    Bias,
    Out,
    ROWS: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    PART: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
    LAUNCH_EARLY: tl.constexpr,
):
    column = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    row = tl.arange(0, BLOCK_ROWS)
    # each warp has its own part of the inputs: there are too few rows and columns to divide
    offset = tl.arange(0, NUM_PARTS)[:, None, None] * PART + tl.arange(0, PART)[None, None, :]
    weights = ()
    for block in tl.static_range(NUM_BLOCKS):
        pointers = Weight + column[None, :, None] * IN + block * (NUM_PARTS * PART) + offset
        weights = weights + (tl.load(pointers),)  # type: ignore[assignment]
    out_bias = tl.zeros((BLOCK_OUT,), tl.float32)
    if Bias is not None:
        out_bias = tl.load(Bias + column).to(tl.float32)
    if LAUNCH_EARLY:
        gdc_wait()
        gdc_launch_dependents()
    xs = ()
    for block in tl.static_range(NUM_BLOCKS):
        pointers = X + row[None, :, None] * IN + block * (NUM_PARTS * PART) + offset
        mask = None if ROWS == BLOCK_ROWS else (row < ROWS)[None, :, None]
        xs = xs + (tl.load(pointers, mask=mask),)  # type: ignore[assignment]
    acc = tl.zeros((NUM_PARTS, BLOCK_ROWS, BLOCK_OUT), tl.float32)
    for block in tl.static_range(NUM_BLOCKS):
        x, weight = _use(xs[block]), _use(weights[block])
        acc = tl.dot(x, tl.trans(weight, (0, 2, 1)), acc)
    out = tl.sum(acc, axis=0) + out_bias[None, :]
    if ACTIVATION != "none":
        out = activate(out, ACTIVATION)
    mask = None if ROWS == BLOCK_ROWS else (row < ROWS)[:, None]
    tl.store(Out + row[:, None] * OUT + column[None, :], out, mask=mask)


@triton.jit
def _use(x):
    """Return x. Without this, Triton moves an operand of a product on right after its load, before the next load."""
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2)
