"""Packed attention equals a softmax over the keys that each query may attend to, sequence by sequence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from cenote.kernels import amx_attention, eager_attention, flash, native_library, sdpa
from cenote.kernels.attention import attend, select_kernel
from cenote.packed_batch import PackedBatch, pack_sequences

LENGTHS = [7, 1, 4, 4, 4, 23, 1, 7]
DIM = 8
SCALE = 0.4

needs_amx = pytest.mark.skipif(
    not native_library.is_available(), reason="needs a CPU with AMX and the compiled native kernels"
)


def naive_attention(
    query: Tensor, key: Tensor, value: Tensor, lengths: list[int], *, causal: bool, window: int | None, scale: float
) -> Tensor:
    """Compute one sequence, head and query at a time."""
    groups = query.shape[1] // key.shape[1]
    out = torch.empty_like(query)
    start = 0
    for length in lengths:
        for head in range(query.shape[1]):
            keys, values = (x[start : start + length, head // groups] for x in (key, value))
            for position in range(length):
                first = 0 if window is None else max(0, position - window)
                last = position if causal else length - 1
                if window is not None:
                    last = min(last, position + window)
                scores = keys[first : last + 1] @ query[start + position, head] * scale
                out[start + position, head] = scores.softmax(-1) @ values[first : last + 1]
        start += length
    return out


def inputs(lengths: list[int], heads: int, kv_heads: int, dim: int = DIM) -> tuple[Tensor, Tensor, Tensor, PackedBatch]:
    batch = pack_sequences([[0] * length for length in lengths])
    generator = torch.Generator().manual_seed(heads * 10 + kv_heads)
    query, key, value = (
        torch.randn(batch.num_tokens, count, dim, generator=generator) for count in (heads, kv_heads, kv_heads)
    )
    return query, key, value, batch


@pytest.mark.parametrize("window", [None, 0, 1, 3, 6, 22, 100])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (3, 1)])
def test_attention_respects_causality_and_window(heads: int, kv_heads: int, causal: bool, window: int | None) -> None:
    query, key, value, batch = inputs(LENGTHS, heads, kv_heads)

    ours = sdpa.attention(query, key, value, batch, causal=causal, window=window, scale=SCALE)

    assert_close(ours, naive_attention(query, key, value, LENGTHS, causal=causal, window=window, scale=SCALE))


@pytest.mark.parametrize("block", [1, 3, 5, 23, 24])
@pytest.mark.parametrize("window", [0, 2, 7])
@pytest.mark.parametrize("causal", [False, True])
def test_a_window_is_the_same_in_blocks(causal: bool, window: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value, batch = inputs([23, 23, 10, 1], heads=4, kv_heads=2)
    monkeypatch.setattr(sdpa, "QUERY_BLOCK", block)

    ours = sdpa.attention(query, key, value, batch, causal=causal, window=window, scale=SCALE)

    assert_close(ours, naive_attention(query, key, value, [23, 23, 10, 1], causal=causal, window=window, scale=SCALE))


def test_no_mask_is_larger_than_a_block_and_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value, batch = inputs([200], heads=1, kv_heads=1)
    monkeypatch.setattr(sdpa, "QUERY_BLOCK", 16)
    masks: list[Tensor] = []
    real = sdpa.scaled_dot_product_attention

    def record_mask(*args: Tensor, attn_mask: Tensor, **options: Any) -> Tensor:
        masks.append(attn_mask)
        return real(*args, attn_mask=attn_mask, **options)

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", record_mask)
    sdpa.attention(query, key, value, batch, causal=False, window=5, scale=SCALE)

    assert max(mask.numel() for mask in masks) <= 16 * (16 + 2 * 5)


def test_other_sequences_in_the_batch_change_nothing() -> None:
    query, key, value, batch = inputs(LENGTHS, heads=2, kv_heads=1)
    packed = sdpa.attention(query, key, value, batch, causal=False, window=None, scale=SCALE)
    start = 0
    for length in LENGTHS:
        rows = slice(start, start + length)
        alone = pack_sequences([[0] * length])
        single = sdpa.attention(query[rows], key[rows], value[rows], alone, causal=False, window=None, scale=SCALE)
        assert_close(single, packed[rows])
        start += length


def test_a_cpu_uses_sdpa_for_what_amx_does_not_support() -> None:
    assert select_kernel(torch.zeros(1, 2, 32)) is sdpa.attention
    assert select_kernel(torch.zeros(1, 2, 44, dtype=torch.bfloat16)) is sdpa.attention


def test_a_cpu_without_the_native_code_uses_sdpa(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_library, "is_available", lambda: False)

    assert select_kernel(torch.zeros(1, 2, 32, dtype=torch.bfloat16)) is sdpa.attention


@needs_amx
def test_a_cpu_with_amx_uses_it() -> None:
    assert select_kernel(torch.zeros(1, 2, 32, dtype=torch.bfloat16)) is amx_attention.attention


@needs_amx
@pytest.mark.parametrize("window", [None, 0, 1, 17, 31, 32, 100])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(2, 2, 32), (4, 2, 64), (3, 1, 96), (2, 1, 128), (2, 2, 72), (4, 2, 80)]
)
def test_amx_attention_equals_the_naive_one(
    heads: int, kv_heads: int, dim: int, causal: bool, window: int | None
) -> None:
    lengths = [1, 5, 5, 15, 16, 17, 31, 32, 33, 64, 70, 130]
    query, key, value, batch = inputs(lengths, heads, kv_heads, dim)
    rounded = [x.bfloat16() for x in (query, key, value)]

    ours = amx_attention.attention(*rounded, batch, causal=causal, window=window, scale=SCALE)

    expected = sdpa.attention(*(x.float() for x in rounded), batch, causal=causal, window=window, scale=SCALE)
    assert_close(ours.float(), expected, atol=2e-2, rtol=2e-2)  # weights and results are bfloat16


@needs_amx
def test_amx_attention_reads_heads_within_wider_rows() -> None:
    query, key, value, batch = inputs([3, 40], heads=2, kv_heads=2, dim=32)
    qkv = torch.cat([x.flatten(1) for x in (query, key, value)], dim=1).bfloat16()
    parts = [part.unflatten(1, (2, 32)) for part in qkv.split(64, dim=1)]

    ours = amx_attention.attention(*parts, batch, causal=False, window=None, scale=SCALE)

    separate = amx_attention.attention(
        *(part.contiguous() for part in parts), batch, causal=False, window=None, scale=SCALE
    )
    assert torch.equal(ours, separate)


@needs_amx
def test_a_sequence_has_the_same_bits_in_any_batch() -> None:
    query, key, value, batch = inputs([9, 33, 120, 2], heads=2, kv_heads=1, dim=64)
    rounded = [x.bfloat16() for x in (query, key, value)]
    in_batch = amx_attention.attention(*rounded, batch, causal=False, window=None, scale=SCALE)[9:42]

    alone = amx_attention.attention(
        *(x[9:42] for x in rounded), pack_sequences([[0] * 33]), causal=False, window=None, scale=SCALE
    )

    assert torch.equal(alone, in_batch)


@needs_amx
def test_scores_of_any_size_give_finite_weights() -> None:
    query, key, value, batch = inputs([20], heads=1, kv_heads=1, dim=32)
    large = (query * 1e4).bfloat16()

    ours = amx_attention.attention(
        large, (key * 1e4).bfloat16(), value.bfloat16(), batch, causal=True, window=None, scale=1.0
    )

    assert ours.isfinite().all()


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or not flash.is_available(), reason="needs a GPU and its packed kernel"
)
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2)])
def test_flash_attention_equals_the_naive_one(heads: int, kv_heads: int, causal: bool, window: int | None) -> None:
    query, key, value, batch = inputs(LENGTHS, heads, kv_heads)
    expected = naive_attention(query, key, value, LENGTHS, causal=causal, window=window, scale=SCALE)
    cuda_batch = PackedBatch(
        token_ids=batch.token_ids.cuda(),
        positions=batch.positions.cuda(),
        cu_seqlens=batch.cu_seqlens.cuda(),
        seq_lens_cpu=batch.seq_lens_cpu,
    )
    half = [x.to("cuda", torch.bfloat16) for x in (query, key, value)]

    ours = flash.attention(*half, cuda_batch, causal=causal, window=window, scale=SCALE)

    assert_close(ours.float().cpu(), expected, atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("window", [None, 0, 3, 100])
@pytest.mark.parametrize("causal", [False, True])
def test_eager_attention_equals_the_naive_one(
    causal: bool, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eager_attention, "MIN_BLOCK", 2)  # sequences of more than one block of queries
    query, key, value, batch = inputs(LENGTHS, 4, 2)

    ours = attend(query, key, value, batch, causal=causal, window=window, scale=SCALE, softcap=1e6)

    assert_close(ours, naive_attention(query, key, value, LENGTHS, causal=causal, window=window, scale=SCALE))


def test_a_bias_belongs_to_a_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager_attention, "MAX_SCORES", 64)  # the longest sequence takes several blocks
    query, key, value, batch = inputs(LENGTHS, 2, 2)
    bias = torch.randn(2, 2 * max(LENGTHS) - 1)

    ours = attend(query, key, value, batch, causal=False, window=None, scale=SCALE, bias=bias)

    start = 0
    for length in LENGTHS:
        rows, positions = slice(start, start + length), torch.arange(length)
        added = bias[:, positions - positions[:, None] + max(LENGTHS) - 1]  # distance 0 is in the middle
        scores = torch.einsum("qhd,khd->hqk", query[rows], key[rows]) * SCALE + added
        assert_close(ours[rows], torch.einsum("hqk,khd->qhd", scores.softmax(-1), value[rows]))
        start += length


def test_a_softcap_and_a_sink_change_the_weights() -> None:
    query, key, value, batch = inputs([5], 2, 2)
    sinks = torch.tensor([0.3, -1.0])

    ours = attend(query, key, value, batch, causal=False, window=None, scale=SCALE, softcap=0.5, sinks=sinks)

    scores = 0.5 * torch.tanh(torch.einsum("qhd,khd->hqk", query, key) * SCALE / 0.5)
    weights = scores.exp() / (scores.exp().sum(-1, keepdim=True) + sinks.exp()[:, None, None])
    assert_close(ours, torch.einsum("hqk,khd->qhd", weights, value))


def test_unattended_tokens_still_attend() -> None:
    query, key, value, batch = inputs([6, 4, 4], 2, 2)

    ours = attend(
        query, key, value, replace(batch, attended_lens_cpu=(2, 4, 1)), causal=False, window=None, scale=SCALE
    )

    start = 0
    for length, attended in ((6, 2), (4, 4), (4, 1)):
        scores = torch.einsum("qhd,khd->hqk", query[start : start + length], key[start : start + attended]) * SCALE
        expected = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value[start : start + attended])
        assert_close(ours[start : start + length], expected)
        start += length
