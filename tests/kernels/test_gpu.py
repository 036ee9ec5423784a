"""The Triton kernels give the results of plain torch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from cenote.kernels import sdpa
from cenote.kernels.activations import ACTIVATIONS, act_and_mul, fused_linear
from cenote.kernels.norm import add_norm
from cenote.layers.attention import Attention
from cenote.layers.backbone import InputEmbedding
from cenote.layers.rotary import PositionInfo, RotaryEmbedding, apply_rotary
from cenote.layers.spec import BackboneSpec, RopeSpec
from cenote.packed_batch import PackedBatch, pack_sequences
from cenote.pooling.methods import POOLING_METHODS
from cenote.pooling.torch_ops import TorchOps
from tests.tiny import copy_to_device

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

# short ones that share a program, some that fill one, runs of equal lengths, and long ones, unsorted
LENGTHS = [3, 20, 20, 20, 1, 64, 65, 128, 128, 7, 129, 300, 512, 33, 1030]


def batch_of(lengths: list[int]) -> PackedBatch:
    return copy_to_device(pack_sequences([[1] * length for length in lengths]), "cuda")


def relative_error(actual: Tensor, exact: Tensor) -> float:
    return float((actual.double() - exact.double()).norm() / exact.double().norm())


@pytest.mark.parametrize("lengths", [LENGTHS, sorted(LENGTHS), [20] * 50, [1], [4096]], ids=lambda x: str(x[:3]))
@pytest.mark.parametrize(
    "heads, kv_heads, size, causal, window",
    [
        (4, 4, 64, False, None),
        (4, 4, 64, True, None),
        (4, 4, 64, False, 16),
        (4, 2, 128, True, 100),
        (2, 2, 32, False, None),
        (3, 1, 96, True, None),
    ],
)
def test_packed_attention_equals_sdpa_in_float32(
    lengths: list[int], heads: int, kv_heads: int, size: int, causal: bool, window: int | None
) -> None:
    from cenote.kernels.gpu import packed_attention

    torch.manual_seed(0)
    batch = batch_of(lengths)
    qkv = torch.randn(batch.num_tokens, heads + 2 * kv_heads, size, device="cuda", dtype=torch.bfloat16)
    parts = qkv.split([heads, kv_heads, kv_heads], dim=1)

    actual = packed_attention.attention(*parts, batch, causal=causal, window=window, scale=size**-0.5)

    exact = sdpa.attention(*(part.float() for part in parts), batch, causal=causal, window=window, scale=size**-0.5)
    assert relative_error(actual, exact) < 5e-3


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [128, 512])
def test_equal_lengths_give_the_same_with_a_cudnn_plan(causal: bool, length: int) -> None:
    from cenote.kernels.gpu import cudnn_attention

    torch.manual_seed(0)
    parts = [torch.randn(32 * length, heads, 64, device="cuda", dtype=torch.bfloat16) for heads in (8, 4, 4)]
    actual = [
        cudnn_attention.attention(*parts, 32, causal=causal, scale=0.125)
        for _ in range(cudnn_attention.CALLS_BEFORE_PLAN + 1)
    ]
    assert actual[0] is None and actual[-1] is not None
    exact = sdpa.attention(
        *(part.float() for part in parts), batch_of([length] * 32), causal=causal, window=None, scale=0.125
    )
    assert relative_error(actual[-1], exact) < 5e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [384, 768, 1000, 4096])
@pytest.mark.parametrize("has_branch", [True, False])
def test_fused_add_and_norm(dtype: torch.dtype, width: int, has_branch: bool) -> None:
    torch.manual_seed(0)
    x, other = (torch.randn(77, width, device="cuda", dtype=dtype) for _ in range(2))
    weight, bias = (torch.randn(width, device="cuda", dtype=dtype) for _ in range(2))
    branch = other if has_branch else None

    for parameters, eps, rms, offset in (
        ((weight, bias), 1e-12, False, 0.0),
        ((weight, None), 1e-6, True, 0.0),
        ((weight, None), 1e-6, True, 1.0),
        ((None, None), 1e-5, False, 0.0),
    ):
        tensors = (x, branch, *parameters)
        actual = add_norm(*tensors, eps, rms=rms, offset=offset)
        exact = add_norm(*(None if t is None else t.cpu() for t in tensors), eps, rms=rms, offset=offset)  # type: ignore[arg-type]
        for ours, theirs in zip(actual, exact, strict=True):
            assert relative_error(ours.cpu(), theirs) < (1e-6 if dtype == torch.float32 else 4e-3)


@pytest.mark.parametrize("activation, function", [("silu", F.silu), ("gelu", F.gelu), ("relu", F.relu)])
def test_gated_activations(activation: str, function) -> None:  # type: ignore[no-untyped-def]
    x = 3 * torch.randn(50, 2 * 1100, device="cuda", dtype=torch.bfloat16)
    gate, up = x.double().chunk(2, dim=-1)

    assert relative_error(act_and_mul(x, activation, function), function(gate) * up) < 2e-3


@pytest.mark.parametrize(
    "activation, function", [("gelu", F.gelu), ("relu", F.relu), ("quick_gelu", ACTIVATIONS["quick_gelu"])]
)
def test_a_fused_activation_is_as_accurate_as_two_separate_kernels(activation: str, function) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    x = torch.randn(4096, 768, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(3072, 768, device="cuda", dtype=torch.bfloat16) * 0.04
    bias = torch.randn(3072, device="cuda", dtype=torch.bfloat16)
    exact = function(F.linear(x.double(), weight.double(), bias.double()))

    actual = fused_linear(x, weight, bias, activation)

    assert actual is not None
    assert relative_error(actual, exact) <= relative_error(function(F.linear(x, weight, bias)), exact)


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_embeddings(typed: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    spec = BackboneSpec(
        vocab_size=50, hidden_size=384, intermediate_size=9, num_layers=1, num_heads=6,
        num_learned_positions=300, position_offset=2, num_token_types=2, has_embed_norm=True,
    )  # fmt: skip
    embedding = InputEmbedding(spec).to(dtype)
    for parameter in embedding.parameters():
        torch.nn.init.normal_(parameter)
    types = [[0, 1, 1], [1] * 200, [0]] if typed else None
    batch = pack_sequences([[3, 49, 0], list(range(50)) * 4, [7]], types)

    with torch.inference_mode():
        expected = embedding(batch)
        actual = embedding.cuda()(copy_to_device(batch, "cuda"))

    assert relative_error(actual.cpu(), expected) < (1e-6 if dtype == torch.float32 else 3e-3)


@pytest.mark.parametrize("name", sorted(POOLING_METHODS))
@pytest.mark.parametrize("skips", [False, True])
def test_pooling_of_many_sequences(name: str, skips: bool) -> None:
    torch.manual_seed(0)
    batch = batch_of(LENGTHS)
    if skips:
        batch = replace(batch, num_unpooled=torch.tensor([length // 3 for length in LENGTHS], device="cuda"))
    hidden = torch.randn(batch.num_tokens, 700, device="cuda", dtype=torch.bfloat16)
    tensors = ("token_ids", "positions", "cu_seqlens", "num_unpooled")
    on_host = {key: None if getattr(batch, key) is None else getattr(batch, key).cpu() for key in tensors}

    actual = POOLING_METHODS[name](TorchOps(), hidden, batch)

    expected = POOLING_METHODS[name](TorchOps(), hidden.cpu(), replace(batch, **on_host))
    assert_close(actual.cpu().float(), expected.float())


@pytest.mark.parametrize("qk_norm", [None, "head"])
@pytest.mark.parametrize("rotary_dim", [64, 32])
def test_qk_norm_and_rope_in_one_kernel(qk_norm: str | None, rotary_dim: int) -> None:
    torch.manual_seed(0)
    spec = BackboneSpec(
        vocab_size=9, hidden_size=96, intermediate_size=9, num_layers=1, num_heads=6, num_kv_heads=3, head_dim=64,
        norm="rms", norm_eps=1e-6, qk_norm=qk_norm,
    )  # fmt: skip
    layer = Attention(spec, 0).cuda()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    rotary = RotaryEmbedding(RopeSpec(rotary_dim=rotary_dim), 64, 512)
    rotary.prepare_buffers(torch.device("cuda"), torch.float32)
    batch = batch_of([5, 300])
    x = torch.randn(batch.num_tokens, 96, device="cuda")
    cos_sin = PositionInfo(rotary(batch.positions)).cos_sin
    assert cos_sin is not None and layer.can_fuse_qk_norm_rope

    with torch.inference_mode():
        actual = layer.project_qkv_rotary(x, cos_sin)
        query, key, value = layer.project(x)

    for ours, theirs in zip(actual, (apply_rotary(query, cos_sin), apply_rotary(key, cos_sin), value), strict=True):
        assert_close(ours, theirs, atol=2e-4, rtol=2e-4)
