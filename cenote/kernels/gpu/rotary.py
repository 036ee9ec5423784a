"""Fused QK norm and rotary embedding in Triton, in place."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


def qk_norm_rope_(
    heads: Tensor,
    cos: Tensor,
    sin: Tensor,
    num_queries: int,
    query_weight: Tensor | None = None,
    key_weight: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Normalize and rotate query and key heads in place.

    heads [tokens, queries + keys, d] may be a view of a larger tensor; cos and sin are [tokens, 1, rotary_dim / 2].
    """
    tokens, count, size = heads.shape
    half = cos.shape[-1]
    rest = size - 2 * half
    block = triton.next_power_of_2(half)
    heads_per_program = max(1, min(triton.next_power_of_2(count), 2048 // block))
    _qk_norm_rope_kernel[(tokens * triton.cdiv(count, heads_per_program),)](
        heads,
        cos,
        sin,
        query_weight,
        key_weight,
        heads.stride(0),
        num_queries,
        count,
        eps,
        half,
        rest,
        heads_per_program,
        block,
        triton.next_power_of_2(max(rest, 1)),
        num_warps=4,
    )


@triton.jit
def _qk_norm_rope_kernel(
    Heads,
    Cos,
    Sin,
    QueryWeight,
    KeyWeight,
    STRIDE: tl.constexpr,
    QUERIES: tl.constexpr,
    COUNT: tl.constexpr,
    EPS: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    HEADS_PER_PROGRAM: tl.constexpr,
    BLOCK: tl.constexpr,
    REST_BLOCK: tl.constexpr,
):
    parts = tl.cdiv(COUNT, HEADS_PER_PROGRAM)
    token = tl.program_id(0).to(tl.int64) // parts
    head = (tl.program_id(0) % parts * HEADS_PER_PROGRAM + tl.arange(0, HEADS_PER_PROGRAM))[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    rotated = column < HALF
    inside = (head < COUNT) & rotated
    size = 2 * HALF + REST
    ptrs = Heads + token * STRIDE + head * size + column
    dtype = Heads.dtype.element_ty
    first = tl.load(ptrs, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(ptrs + HALF, mask=inside, other=0.0).to(tl.float32)
    rest_column = tl.arange(0, REST_BLOCK)[None, :]
    rest_inside = (head < COUNT) & (rest_column < REST)
    rest_ptrs = Heads + token * STRIDE + head * size + 2 * HALF + rest_column
    if QueryWeight is not None:
        squares = tl.sum(first * first + second * second, axis=1)
        if REST > 0:
            rest = tl.load(rest_ptrs, mask=rest_inside, other=0.0).to(tl.float32)
            squares += tl.sum(rest * rest, axis=1)
        norm = tl.rsqrt(squares / size + EPS)[:, None]
        is_query = head < QUERIES
        first = _apply_weight(first * norm, QueryWeight, KeyWeight, is_query, column, rotated, dtype)
        second = _apply_weight(second * norm, QueryWeight, KeyWeight, is_query, column + HALF, rotated, dtype)
        if REST > 0:
            is_rest = rest_column < REST
            rest = _apply_weight(rest * norm, QueryWeight, KeyWeight, is_query, rest_column + 2 * HALF, is_rest, dtype)
            tl.store(rest_ptrs, rest, mask=rest_inside)
    cos = tl.load(Cos + token * HALF + column, mask=rotated, other=0.0).to(tl.float32)
    sin = tl.load(Sin + token * HALF + column, mask=rotated, other=0.0).to(tl.float32)
    tl.store(ptrs, first * cos - second * sin, mask=inside)
    tl.store(ptrs + HALF, second * cos + first * sin, mask=inside)


@triton.jit
def _apply_weight(x, QueryWeight, KeyWeight, is_query, column, inside, dtype: tl.constexpr):
    query = tl.load(QueryWeight + column, mask=inside, other=0.0).to(tl.float32)
    key = tl.load(KeyWeight + column, mask=inside, other=0.0).to(tl.float32)
    weight = tl.where(is_query, query, key)
    return (x.to(dtype).to(tl.float32) * weight).to(dtype).to(tl.float32)
