"""Attention over packed sequences in Triton: several short ones per program, or long ones block by block."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cenote.kernels.gpu.few_rows import get_launch_options, is_few_rows_mode

LOG2E = 1.4426950408889634
# measured on an H200 with head size 64: tokens of short sequences per program, and block sizes for long ones
TILE = 64
ROWS, NARROW_KEY_BLOCK, WIDE_KEY_BLOCK = 64, 32, 64
NARROW_MAX_LENGTH = 224  # tokens, up to which narrow key blocks are faster


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
    """Compute `num_seqs` sequences of at most `max_length` tokens, as many per program as fit in its tile."""
    heads, size = query.shape[1:]
    # one text alone needs no more rows than it has tokens
    tile = max(16, triton.next_power_of_2(max_length)) if num_seqs == 1 and is_few_rows_mode() else TILE
    seqs_per_program = tile // max_length
    _attend_short_kernel[(triton.cdiv(num_seqs, seqs_per_program) * heads,)](
        query,
        key,
        value,
        out,
        cu_seqlens,
        positions,
        first_seq,
        first_seq + num_seqs,
        seqs_per_program,
        window or 0,
        scale * LOG2E,
        query.stride(0),
        key.stride(0),
        value.stride(0),
        heads,
        heads // key.shape[1],
        causal,
        window is not None and window < max_length - 1,
        seqs_per_program > 1,
        tile,
        size,
        max(16, triton.next_power_of_2(size)),
        is_few_rows_mode(),
        num_warps=4,
        **get_launch_options(),
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
    """Compute `num_seqs` sequences of any length, with one program per head and block of queries."""
    heads, size = query.shape[1:]
    num_blocks = triton.cdiv(max_length, ROWS)
    _attend_long_kernel[(num_seqs * heads * num_blocks,)](
        query,
        key,
        value,
        out,
        cu_seqlens,
        first_seq,
        num_blocks,
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


@triton.jit(do_not_specialize=["first_seq", "end_seq", "seqs_per_program", "window", "scale"])
def _attend_short_kernel(
    Query,
    Key,
    Value,
    Out,
    CuSeqlens,
    Positions,
    first_seq,
    end_seq,
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
    LAUNCH_EARLY: tl.constexpr,
):
    if LAUNCH_EARLY:
        gdc_wait()
        gdc_launch_dependents()
    head = tl.program_id(0) % HEADS
    sequence = first_seq + tl.program_id(0) // HEADS * seqs_per_program
    start = tl.load(CuSeqlens + sequence).to(tl.int64)
    stop = tl.load(CuSeqlens + tl.minimum(sequence + seqs_per_program, end_seq)).to(tl.int64)
    row = tl.arange(0, TILE)
    column = tl.arange(0, BLOCK)
    token = start + row
    is_token = token < stop
    mask = is_token[:, None] & (column < SIZE)[None, :]
    columns = head * SIZE + column
    kv_columns = head // GROUP * SIZE + column
    query = tl.load(Query + token[:, None] * QUERY_STRIDE + columns[None, :], mask=mask, other=0.0)
    key = tl.load(Key + token[:, None] * KEY_STRIDE + kv_columns[None, :], mask=mask, other=0.0)
    value = tl.load(Value + token[:, None] * VALUE_STRIDE + kv_columns[None, :], mask=mask, other=0.0)
    scores = tl.dot(query, tl.trans(key)) * scale
    visible = is_token[None, :]
    if MULTI_SEQ:
        seq_start = row - tl.load(Positions + token, mask=is_token, other=0).to(tl.int32)
        visible = visible & (seq_start[:, None] == seq_start[None, :])
    distance = row[:, None] - row[None, :]
    if CAUSAL:
        visible = visible & (distance >= 0)
    if WINDOW:
        visible = visible & (distance <= window) & (distance >= -window)
    scores = tl.where(visible, scores, float("-inf"))
    max_score = tl.max(scores, axis=1)
    weights = tl.exp2(scores - max_score[:, None])
    total = tl.sum(weights, axis=1)
    acc = tl.dot(weights.to(value.dtype), value) / total[:, None]
    out_ptrs = Out + token[:, None] * (HEADS * SIZE) + columns[None, :]
    tl.store(out_ptrs, acc.to(Out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["first_seq", "num_blocks", "window", "scale"])
def _attend_long_kernel(
    Query,
    Key,
    Value,
    Out,
    CuSeqlens,
    first_seq,
    num_blocks,
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
    first_row = tl.program_id(0) % num_blocks * ROWS
    head = tl.program_id(0) // num_blocks % HEADS
    sequence = first_seq + tl.program_id(0) // num_blocks // HEADS
    start = tl.load(CuSeqlens + sequence).to(tl.int64)
    length = (tl.load(CuSeqlens + sequence + 1).to(tl.int64) - start).to(tl.int32)
    if first_row >= length:
        return
    row = first_row + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    is_column = column < SIZE
    query_offsets = (start + row)[:, None] * QUERY_STRIDE + (head * SIZE + column)[None, :]
    query = tl.load(Query + query_offsets, mask=(row < length)[:, None] & is_column[None, :], other=0.0)
    kv_head = head // GROUP * SIZE
    keys = Key + start * KEY_STRIDE + kv_head
    values = Value + start * VALUE_STRIDE + kv_head
    acc = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    max_score = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    # keys before `unmasked` are visible to all rows and need no mask; a window moves with the row and leaves none
    low, unmasked, high = 0, length // COLUMNS * COLUMNS, length
    if CAUSAL:
        unmasked, high = first_row // COLUMNS * COLUMNS, tl.minimum(length, first_row + ROWS)
    if WINDOW:
        low = tl.maximum(0, first_row - window) // COLUMNS * COLUMNS
        unmasked = low
        high = tl.minimum(high, first_row + ROWS + window)
    acc, max_score, total = _attend_key_blocks(
        acc, max_score, total, query, keys, values, row, length, low, unmasked, window, scale,
        KEY_STRIDE, VALUE_STRIDE, CAUSAL, WINDOW, False, COLUMNS, SIZE, BLOCK,
    )  # fmt: skip
    acc, max_score, total = _attend_key_blocks(
        acc, max_score, total, query, keys, values, row, length, unmasked, high, window, scale,
        KEY_STRIDE, VALUE_STRIDE, CAUSAL, WINDOW, True, COLUMNS, SIZE, BLOCK,
    )  # fmt: skip
    out_ptrs = Out + (start + row)[:, None] * (HEADS * SIZE) + (head * SIZE + column)[None, :]
    acc = (acc / total[:, None]).to(Out.dtype.element_ty)
    tl.store(out_ptrs, acc, mask=(row < length)[:, None] & is_column[None, :])


@triton.jit
def _attend_key_blocks(
    acc, max_score, total, query, keys, values, row, length, low, high, window, scale,
    KEY_STRIDE: tl.constexpr,
    VALUE_STRIDE: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
    COLUMNS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Accumulate attention of all rows to the keys from `low` to `high` (online softmax)."""
    column = tl.arange(0, BLOCK)
    for left in range(low, high, COLUMNS):
        key_row = left + tl.arange(0, COLUMNS)
        key_ptrs = keys + key_row[:, None] * KEY_STRIDE + column[None, :]
        value_ptrs = values + key_row[:, None] * VALUE_STRIDE + column[None, :]
        if MASKED or SIZE < BLOCK:
            mask = (key_row < length)[:, None] & (column < SIZE)[None, :]
            key = tl.load(key_ptrs, mask=mask, other=0.0)
        else:
            key = tl.load(key_ptrs)
        scores = tl.dot(query, tl.trans(key))
        if MASKED:
            visible = (key_row < length)[None, :]
            distance = row[:, None] - key_row[None, :]
            if CAUSAL:
                visible = visible & (distance >= 0)
            if WINDOW:
                visible = visible & (distance <= window) & (distance >= -window)
            scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(max_score, tl.max(scores, axis=1) * scale)
        base = tl.where(new_max == float("-inf"), 0.0, new_max) if WINDOW else new_max  # all keys so far may be masked
        weights = tl.exp2(scores * scale - base[:, None])
        correction = tl.exp2(max_score - base)
        total = total * correction + tl.sum(weights, axis=1)
        acc = acc * correction[:, None]
        value = tl.load(value_ptrs, mask=mask, other=0.0) if MASKED or SIZE < BLOCK else tl.load(value_ptrs)
        acc = tl.dot(weights.to(value.dtype), value, acc)
        max_score = new_max
    return acc, max_score, total
