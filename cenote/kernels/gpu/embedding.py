"""Fused lookup, sum and layer norm of token, token type and position embeddings in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cenote.kernels.gpu.fp8_quantize import QuantizedRows, quantize_row
from cenote.kernels.gpu.triton_support import FP8_MAX


def embed_and_norm(
    token_ids: Tensor,
    token_table: Tensor,
    token_type_ids: Tensor | None,
    token_type_table: Tensor | None,
    positions: Tensor | None,
    position_table: Tensor | None,
    position_offset: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    output_fp8: bool = False,
) -> Tensor:
    """Return the normalized sum of the embeddings; without `token_type_ids` all tokens have type 0."""
    count, width = token_ids.shape[0], token_table.shape[1]
    out = torch.empty(count, width, dtype=token_table.dtype, device=token_table.device)
    fp8 = None
    if output_fp8:
        fp8 = QuantizedRows(
            torch.empty(count, width, dtype=torch.float8_e4m3fn, device=token_table.device),
            torch.empty(count, 1, dtype=torch.float32, device=token_table.device),
        )
    block = triton.next_power_of_2(width)
    _embed_and_norm_kernel[(count,)](
        token_ids,
        token_table,
        token_type_ids,
        token_type_table,
        positions,
        position_table,
        weight,
        bias,
        out,
        None if fp8 is None else fp8.values,
        None if fp8 is None else fp8.scales,
        position_offset,
        width,
        eps,
        FP8_MAX,
        block,
        num_warps=max(1, min(16, block // 1024)),
    )
    if fp8 is not None:
        out.fp8 = fp8  # type: ignore[attr-defined]
    return out


@triton.jit
def _embed_and_norm_kernel(
    TokenIds,
    TokenTable,
    TokenTypeIds,
    TypeTable,
    Positions,
    PositionTable,
    Weight,
    Bias,
    Out,
    Values,
    Scales,
    OFFSET: tl.constexpr,
    WIDTH: tl.constexpr,
    EPS: tl.constexpr,
    FP8_LIMIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    dtype = Out.dtype.element_ty
    x = tl.load(TokenTable + tl.load(TokenIds + token) * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    if TypeTable is not None:
        row = 0
        if TokenTypeIds is not None:
            row = tl.load(TokenTypeIds + token)
        x += tl.load(TypeTable + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        x = x.to(dtype).to(tl.float32)  # rounded like separate additions
    if PositionTable is not None:
        row = tl.load(Positions + token) + OFFSET
        x += tl.load(PositionTable + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        x = x.to(dtype).to(tl.float32)
    x = tl.where(inside, x - tl.sum(x, axis=0) / WIDTH, 0.0)
    x = x * tl.rsqrt(tl.sum(x * x, axis=0) / WIDTH + EPS)
    if Weight is not None:
        x = x * tl.load(Weight + column, mask=inside, other=0.0).to(tl.float32)
    if Bias is not None:
        x = x + tl.load(Bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(Out + token * WIDTH + column, x, mask=inside)
    if Values is not None:
        values, scale = quantize_row(x, FP8_LIMIT)
        tl.store(Values + token * WIDTH + column, values.to(Values.dtype.element_ty), mask=inside)
        tl.store(Scales + token, scale)
