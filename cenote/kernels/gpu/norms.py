"""Fused residual add and norm in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cenote.kernels.gpu.few_rows import get_launch_options, is_few_rows_mode
from cenote.kernels.gpu.fp8_quantize import QuantizedRows, quantize_row
from cenote.kernels.gpu.triton_support import FP8_MAX


def add_norm(
    residual: Tensor,
    branch: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    rms: bool,
    offset: float,
    return_residual: bool,
    *,
    output_fp8: bool,
) -> tuple[Tensor, Tensor]:
    """Return residual + branch and its norm, with the attribute `fp8` if `output_fp8`.

    Without `return_residual` the sum is not stored and the first tensor is undefined.
    """
    width = residual.shape[-1]
    x_rows = residual.reshape(-1, width) if residual.stride(-1) == 1 else residual.contiguous().view(-1, width)
    rows = x_rows.shape[0]
    normed = torch.empty_like(x_rows)
    total = x_rows if branch is None else torch.empty_like(x_rows) if return_residual else normed
    fp8 = None
    if output_fp8:
        fp8 = QuantizedRows(
            torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=residual.device),
            torch.empty(rows, 1, dtype=torch.float32, device=residual.device),
        )
    block = triton.next_power_of_2(width)
    _add_norm_kernel[(rows,)](
        x_rows,
        None if branch is None else branch.contiguous(),
        total if branch is not None and return_residual else None,
        normed,
        weight,
        bias,
        None if fp8 is None else fp8.values,
        None if fp8 is None else fp8.scales,
        x_rows.stride(0),
        x_rows.stride(0) == width,
        width,
        eps,
        offset,
        rms,
        FP8_MAX,
        block,
        is_few_rows_mode(),
        num_warps=max(1, min(16, block // 1024)),
        **get_launch_options(),
    )
    normed = normed.view(residual.shape)
    if fp8 is not None:
        normed.fp8 = fp8  # type: ignore[attr-defined]
    return total.view(residual.shape), normed


@triton.jit(do_not_specialize=["stride"])
def _add_norm_kernel(
    X,
    Branch,
    Total,
    Normed,
    Weight,
    Bias,
    Values,
    Scales,
    stride,
    CONTIGUOUS: tl.constexpr,
    WIDTH: tl.constexpr,
    EPS: tl.constexpr,
    OFFSET: tl.constexpr,
    RMS: tl.constexpr,
    FP8_LIMIT: tl.constexpr,
    BLOCK: tl.constexpr,
    LAUNCH_EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    dtype = Normed.dtype.element_ty
    if Weight is not None:
        weight = tl.load(Weight + column, mask=inside, other=0.0).to(tl.float32)
    if Bias is not None:
        bias = tl.load(Bias + column, mask=inside, other=0.0).to(tl.float32)
    if LAUNCH_EARLY:  # the parameters are loaded by then
        gdc_wait()
        gdc_launch_dependents()
    x_row = X + row * (WIDTH if CONTIGUOUS else stride)  # a constant width lets each thread load 16 bytes at once
    x = tl.load(x_row + column, mask=inside, other=0.0).to(tl.float32)
    if Branch is not None:
        x += tl.load(Branch + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        x = x.to(dtype)  # rounded like a stored sum, whether or not it is stored
        if Total is not None:
            tl.store(Total + row * WIDTH + column, x, mask=inside)
        x = x.to(tl.float32)
    if RMS:
        x = x * tl.rsqrt(tl.sum(x * x, axis=0) / WIDTH + EPS)
        # as in Transformers, x is rounded before the weight is applied, unless there is an offset
        x = x.to(dtype).to(tl.float32) * weight if OFFSET == 0.0 else x * (weight + OFFSET)
    else:
        x = tl.where(inside, x - tl.sum(x, axis=0) / WIDTH, 0.0)
        x = x * tl.rsqrt(tl.sum(x * x, axis=0) / WIDTH + EPS)
        if Weight is not None:
            x = x * weight
        if Bias is not None:
            x = x + bias
    tl.store(Normed + row * WIDTH + column, x, mask=inside)
    if Values is not None:
        values, scale = quantize_row(x, FP8_LIMIT)
        tl.store(Values + row * WIDTH + column, values.to(Values.dtype.element_ty), mask=inside)
        tl.store(Scales + row, scale)
