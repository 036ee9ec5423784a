"""The rows of a token, its type and its place, added up and normed while they are in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cenote.kernels.gpu.fp8_quantize import QuantizedRows, fp8_max, quantize_row


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
    """Rows of the tables `tokens`, `types` and `places`; without `token_types` all tokens are of the first."""
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
        fp8_max(),
        block,
        num_warps=max(1, min(16, block // 1024)),
    )
    if fp8 is not None:
        out.fp8 = fp8  # type: ignore[attr-defined]
    return out


@triton.jit
def _embed_and_norm_kernel(
    TokenIds,
    Tokens,
    TokenTypes,
    Types,
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
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    kind = Out.dtype.element_ty
    x = tl.load(Tokens + tl.load(TokenIds + token) * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    if Types is not None:
        row = 0
        if TokenTypes is not None:
            row = tl.load(TokenTypes + token)
        x += tl.load(Types + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        x = x.to(kind).to(tl.float32)  # rounded as often as step by step
    if PositionTable is not None:
        row = tl.load(Positions + token) + OFFSET
        x += tl.load(PositionTable + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        x = x.to(kind).to(tl.float32)
    x = tl.where(inside, x - tl.sum(x, axis=0) / WIDTH, 0.0)
    x = x * tl.rsqrt(tl.sum(x * x, axis=0) / WIDTH + EPS)
    if Weight is not None:
        x = x * tl.load(Weight + column, mask=inside, other=0.0).to(tl.float32)
    if Bias is not None:
        x = x + tl.load(Bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(Out + token * WIDTH + column, x, mask=inside)
    if Values is not None:
        values, scale = quantize_row(x, LARGEST)
        tl.store(Values + token * WIDTH + column, values.to(Values.dtype.element_ty), mask=inside)
        tl.store(Scales + token, scale)
