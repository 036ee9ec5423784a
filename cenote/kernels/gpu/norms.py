"""x + change and its norm in one pass: each number is read once and written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cenote.kernels.gpu.fp8_quantize import QuantizedRows, fp8_max, quantize_row


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
    """The sum and its norm, and that in fp8 as its attribute where it is wanted; an unwanted sum is not written."""
    width = residual.shape[-1]
    rows_of = residual.reshape(-1, width) if residual.stride(-1) == 1 else residual.contiguous().view(-1, width)
    rows = rows_of.shape[0]
    normed = torch.empty_like(rows_of)
    total = rows_of if branch is None else torch.empty_like(rows_of) if return_residual else normed
    fp8 = None
    if output_fp8:
        fp8 = QuantizedRows(
            torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=residual.device),
            torch.empty(rows, 1, dtype=torch.float32, device=residual.device),
        )
    block = triton.next_power_of_2(width)
    _add_norm_kernel[(rows,)](
        rows_of,
        None if branch is None else branch.contiguous(),
        total if branch is not None and return_residual else None,
        normed,
        weight,
        bias,
        None if fp8 is None else fp8.values,
        None if fp8 is None else fp8.scales,
        rows_of.stride(0),
        width,
        eps,
        offset,
        rms,
        fp8_max(),
        block,
        num_warps=max(1, min(16, block // 1024)),
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
    WIDTH: tl.constexpr,
    EPS: tl.constexpr,
    OFFSET: tl.constexpr,
    RMS: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    kind = Normed.dtype.element_ty
    x = tl.load(X + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    if Branch is not None:
        x += tl.load(Branch + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        x = x.to(kind)  # rounded as a sum that is kept would be
        if Total is not None:
            tl.store(Total + row * WIDTH + column, x, mask=inside)
        x = x.to(tl.float32)
    if RMS:
        x = x * tl.rsqrt(tl.sum(x * x, axis=0) / WIDTH + EPS)
        weight = tl.load(Weight + column, mask=inside, other=0.0).to(tl.float32)
        # the weight multiplies what is rounded already, unless something is added to it
        x = x.to(kind).to(tl.float32) * weight if OFFSET == 0.0 else x * (weight + OFFSET)
    else:
        x = tl.where(inside, x - tl.sum(x, axis=0) / WIDTH, 0.0)
        x = x * tl.rsqrt(tl.sum(x * x, axis=0) / WIDTH + EPS)
        if Weight is not None:
            x = x * tl.load(Weight + column, mask=inside, other=0.0).to(tl.float32)
        if Bias is not None:
            x = x + tl.load(Bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(Normed + row * WIDTH + column, x, mask=inside)
    if Values is not None:
        values, scale = quantize_row(x, LARGEST)
        tl.store(Values + row * WIDTH + column, values.to(Values.dtype.element_ty), mask=inside)
        tl.store(Scales + row, scale)
