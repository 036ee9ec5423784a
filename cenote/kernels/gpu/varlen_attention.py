"""Attention over packed sequences: many short ones to a program in registers, or one long one block by block."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

LOG2E = 1.4426950408889634
# measured on an H200, heads of 64: what a program holds of short sequences, and how it steps through long ones
TILE = 64
ROWS, NARROW_KEY_BLOCK, WIDE_KEY_BLOCK = 64, 32, 64
NARROW_MAX_LENGTH = 224  # tokens, up to which narrow steps are faster


def attend_short(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    cu_seqlens: Tensor,
    positions: Tensor,
    first_seq: int,
    num_seqs: int,
    max_length: int,
    *,
    causal: bool,
    window: int | None,
    scale: float,
) -> None:
    """Sequences `first` to `first + count`, none longer than `longest`, as many to a program as surely fit its tile."""
    heads, size = query.shape[1:]
    together = TILE // max_length
    _attend_short_kernel[(triton.cdiv(num_seqs, together) * heads,)](
        query,
        key,
        value,
        out,
        cu_seqlens,
        positions,
        first_seq,
        first_seq + num_seqs,
        together,
        window or 0,
        scale * LOG2E,
        query.stride(0),
        key.stride(0),
        value.stride(0),
        heads,
        heads // key.shape[1],
        causal,
        window is not None and window < max_length - 1,
        together > 1,
        TILE,
        size,
        max(16, triton.next_power_of_2(size)),
        num_warps=4,
    )


def attend_long(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    cu_seqlens: Tensor,
    first_seq: int,
    num_seqs: int,
    max_length: int,
    *,
    causal: bool,
    window: int | None,
    scale: float,
) -> None:
    """The same for sequences of any length, with a program for every block of rows of a head."""
    heads, size = query.shape[1:]
    blocks = triton.cdiv(max_length, ROWS)
    _attend_long_kernel[(num_seqs * heads * blocks,)](
        query,
        key,
        value,
        out,
        cu_seqlens,
        first_seq,
        blocks,
        window or 0,
        scale * LOG2E,
        query.stride(0),
        key.stride(0),
        value.stride(0),
        heads,
        heads // key.shape[1],
        causal,
        window is not None and window < max_length - 1,
        ROWS,
        NARROW_KEY_BLOCK if max_length <= NARROW_MAX_LENGTH else WIDE_KEY_BLOCK,
        size,
        max(16, triton.next_power_of_2(size)),
        num_warps=4,
        num_stages=3,
    )


@triton.jit(do_not_specialize=["first", "end", "seqs_per_program", "window", "scale"])
def _attend_short_kernel(
    Query,
    Key,
    Value,
    Out,
    Offsets,
    Positions,
    first,
    end,
    seqs_per_program,
    window,
    scale,
    QUERY_STRIDE: tl.constexpr,
    KEY_STRIDE: tl.constexpr,
    VALUE_STRIDE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    MULTI_SEQ: tl.constexpr,
    TILE: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    head = tl.program_id(0) % HEADS
    sequence = first + tl.program_id(0) // HEADS * seqs_per_program
    start = tl.load(Offsets + sequence).to(tl.int64)
    stop = tl.load(Offsets + tl.minimum(sequence + seqs_per_program, end)).to(tl.int64)
    row = tl.arange(0, TILE)
    column = tl.arange(0, BLOCK)
    token = start + row
    there = token < stop
    mask = there[:, None] & (column < SIZE)[None, :]
    at = head * SIZE + column
    kv_at = head // GROUP * SIZE + column
    query = tl.load(Query + token[:, None] * QUERY_STRIDE + at[None, :], mask=mask, other=0.0)
    key = tl.load(Key + token[:, None] * KEY_STRIDE + kv_at[None, :], mask=mask, other=0.0)
    value = tl.load(Value + token[:, None] * VALUE_STRIDE + kv_at[None, :], mask=mask, other=0.0)
    products = tl.dot(query, tl.trans(key)) * scale
    seen = there[None, :]
    if MULTI_SEQ:
        own = row - tl.load(Positions + token, mask=there, other=0).to(tl.int32)  # where its sequence starts
        seen = seen & (own[:, None] == own[None, :])
    distance = row[:, None] - row[None, :]
    if CAUSAL:
        seen = seen & (distance >= 0)
    if WINDOW:
        seen = seen & (distance <= window) & (distance >= -window)
    products = tl.where(seen, products, float("-inf"))
    highest = tl.max(products, axis=1)
    weights = tl.exp2(products - highest[:, None])
    total = tl.sum(weights, axis=1)
    mixed = tl.dot(weights.to(value.dtype), value) / total[:, None]
    out_at = Out + token[:, None] * (HEADS * SIZE) + at[None, :]
    tl.store(out_at, mixed.to(Out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["first", "blocks", "window", "scale"])
def _attend_long_kernel(
    Query,
    Key,
    Value,
    Out,
    Offsets,
    first,
    blocks,
    window,
    scale,
    QUERY_STRIDE: tl.constexpr,
    KEY_STRIDE: tl.constexpr,
    VALUE_STRIDE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    top = tl.program_id(0) % blocks * ROWS
    head = tl.program_id(0) // blocks % HEADS
    sequence = first + tl.program_id(0) // blocks // HEADS
    start = tl.load(Offsets + sequence).to(tl.int64)
    length = (tl.load(Offsets + sequence + 1).to(tl.int64) - start).to(tl.int32)
    if top >= length:
        return
    row = top + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    wide = column < SIZE
    query_at = (start + row)[:, None] * QUERY_STRIDE + (head * SIZE + column)[None, :]
    query = tl.load(Query + query_at, mask=(row < length)[:, None] & wide[None, :], other=0.0)
    kv_head = head // GROUP * SIZE
    keys = Key + start * KEY_STRIDE + kv_head
    values = Value + start * VALUE_STRIDE + kv_head
    mixed = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    highest = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    # keys that all rows see need no mask: none of them with a window, for it moves with the row
    low, whole, high = 0, length // COLUMNS * COLUMNS, length
    if CAUSAL:
        whole, high = top // COLUMNS * COLUMNS, tl.minimum(length, top + ROWS)
    if WINDOW:
        low = tl.maximum(0, top - window) // COLUMNS * COLUMNS
        whole = low
        high = tl.minimum(high, top + ROWS + window)
    mixed, highest, total = _attend_key_blocks(
        mixed, highest, total, query, keys, values, row, length, low, whole, window, scale,
        KEY_STRIDE, VALUE_STRIDE, CAUSAL, WINDOW, False, COLUMNS, SIZE, BLOCK,
    )  # fmt: skip
    mixed, highest, total = _attend_key_blocks(
        mixed, highest, total, query, keys, values, row, length, whole, high, window, scale,
        KEY_STRIDE, VALUE_STRIDE, CAUSAL, WINDOW, True, COLUMNS, SIZE, BLOCK,
    )  # fmt: skip
    out_at = Out + (start + row)[:, None] * (HEADS * SIZE) + (head * SIZE + column)[None, :]
    mixed = (mixed / total[:, None]).to(Out.dtype.element_ty)
    tl.store(out_at, mixed, mask=(row < length)[:, None] & wide[None, :])


@triton.jit
def _attend_key_blocks(
    mixed, highest, total, query, keys, values, row, length, low, high, window, scale,
    KEY_STRIDE: tl.constexpr,
    VALUE_STRIDE: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
    COLUMNS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """All rows against the keys from `low` to `high`."""
    column = tl.arange(0, BLOCK)
    for left in range(low, high, COLUMNS):
        other = left + tl.arange(0, COLUMNS)
        key_at = keys + other[:, None] * KEY_STRIDE + column[None, :]
        value_at = values + other[:, None] * VALUE_STRIDE + column[None, :]
        if MASKED or SIZE < BLOCK:
            there = (other < length)[:, None] & (column < SIZE)[None, :]
            key = tl.load(key_at, mask=there, other=0.0)
        else:
            key = tl.load(key_at)
        products = tl.dot(query, tl.trans(key))
        if MASKED:
            seen = (other < length)[None, :]
            distance = row[:, None] - other[None, :]
            if CAUSAL:
                seen = seen & (distance >= 0)
            if WINDOW:
                seen = seen & (distance <= window) & (distance >= -window)
            products = tl.where(seen, products, float("-inf"))
        now = tl.maximum(highest, tl.max(products, axis=1) * scale)
        base = tl.where(now == float("-inf"), 0.0, now) if WINDOW else now  # a row may have seen nothing yet
        weights = tl.exp2(products * scale - base[:, None])
        shrink = tl.exp2(highest - base)
        total = total * shrink + tl.sum(weights, axis=1)
        mixed = mixed * shrink[:, None]
        value = tl.load(value_at, mask=there, other=0.0) if MASKED or SIZE < BLOCK else tl.load(value_at)
        mixed = tl.dot(weights.to(value.dtype), value, mixed)
        highest = now
    return mixed, highest, total
