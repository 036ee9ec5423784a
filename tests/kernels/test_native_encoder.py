"""The native encoder equals its blocks run one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cosine_similarity

from cenote.kernels import native_library
from cenote.kernels.int8 import Int8Quantizer
from cenote.kernels.linear import prepack
from cenote.kernels.quantized_linear import quantize_module
from cenote.layers.backbone import Backbone
from cenote.layers.fused_encoder import try_fuse_encoder
from cenote.layers.spec import BackboneSpec, RelativeBiasSpec, RopeSpec
from cenote.packed_batch import PackedBatch, pack_sequences
from tests.tiny import randomize

pytestmark = pytest.mark.skipif(
    not native_library.is_available(), reason="needs a CPU with AMX and the compiled native kernels"
)

LENGTHS = [1, 5, 16, 17, 33, 64, 2, 100, 7]
SPEC = BackboneSpec(
    vocab_size=200,
    hidden_size=128,
    intermediate_size=192,
    num_layers=2,
    num_heads=4,
    num_learned_positions=512,
    num_token_types=2,
    has_embed_norm=True,
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
    norm_order="post",
    has_final_norm=False,
)


def make_backbone(spec: BackboneSpec) -> Backbone:
    backbone = Backbone(spec).requires_grad_(False)
    randomize(backbone, std=0.1)
    return backbone.bfloat16()


def make_fused_backbone(spec: BackboneSpec = SPEC, *, int8: bool = False) -> Backbone:
    backbone = make_backbone(spec)
    backbone.prepare_buffers(torch.device("cpu"), torch.bfloat16)
    if int8:
        quantize_module(backbone, Int8Quantizer(multiplies_int8=True))
    prepack(backbone)
    backbone.fused_encoder = try_fuse_encoder(backbone)
    return backbone


def sequences(lengths: list[int]) -> list[list[int]]:
    return torch.split(torch.randint(0, 200, (sum(lengths),), generator=torch.Generator().manual_seed(1)), lengths)


def batch_of(lengths: list[int], *, typed: bool = False) -> PackedBatch:
    rows = [row.tolist() for row in sequences(lengths)]
    return pack_sequences(
        rows, [[int(position > 3) for position in range(len(row))] for row in rows] if typed else None
    )


def run_without_fused_encoder(backbone: Backbone, batch: PackedBatch) -> torch.Tensor:
    fused_encoder, backbone.fused_encoder = backbone.fused_encoder, None
    states: torch.Tensor = backbone(batch)
    backbone.fused_encoder = fused_encoder
    return states


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"activation": "relu", "num_kv_heads": 2},
        {"causal": True, "hidden_size": 64, "num_heads": 1},
        {"window": 8, "local_layers": (True, True)},
        {"intermediate_size": 1152, "position_offset": 2},
        {"num_token_types": 0, "num_learned_positions": 0, "norm_bias": False, "mlp_bias": False},
        {"embedding_size": 64},
        {"has_embed_norm": False},
    ],
)
def test_the_fused_encoder_equals_its_blocks(change: dict[str, object], int8: bool) -> None:
    spec = replace(SPEC, **change)  # type: ignore[arg-type]
    backbone, batch = make_fused_backbone(spec, int8=int8), batch_of(LENGTHS, typed=True)

    assert backbone.fused_encoder is not None
    exact = make_backbone(spec).double()(batch)
    fused, blocks = (x.double() for x in (backbone(batch), run_without_fused_encoder(backbone, batch)))

    error, error_of_blocks = (1 - cosine_similarity(x, exact, dim=-1) for x in (fused, blocks))
    assert error.max() < (0.02 if int8 else 5e-4)
    assert error.mean() < 1.1 * error_of_blocks.mean()  # sums are rounded less often


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("int8", [False, True])
def test_a_sequence_gives_the_same_bits_in_any_batch_and_with_any_number_of_threads(int8: bool, threads: int) -> None:
    backbone = make_fused_backbone(replace(SPEC, intermediate_size=640), int8=int8)
    lengths = [*LENGTHS, *([40] * 30), 300, 1]
    before = torch.get_num_threads()
    expected = backbone(batch_of(lengths))
    torch.set_num_threads(threads)
    try:
        assert torch.equal(backbone(batch_of(lengths)), expected)
        for tokens, states in zip(sequences(lengths), expected.split(lengths), strict=True):
            assert torch.equal(backbone(pack_sequences([tokens.tolist()])), states)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("lengths", [[0, 3], [3, 0, 0, 40]])
def test_a_sequence_without_tokens_changes_no_other(lengths: list[int]) -> None:
    backbone = make_fused_backbone()

    states = backbone(batch_of(lengths))

    assert torch.equal(states, backbone(batch_of([length for length in lengths if length])))


def test_an_id_out_of_range_raises_index_error_as_in_torch() -> None:
    backbone = make_fused_backbone()

    for ids in ([3, 200], [-1]):
        with pytest.raises(IndexError):
            backbone(pack_sequences([ids]))
    with pytest.raises(IndexError):
        backbone(pack_sequences([[1] * 513]))


@pytest.mark.parametrize(
    "change",
    [
        {"norm_order": "pre"},
        {"relative_bias": RelativeBiasSpec(num_buckets=32)},
        {"rope": RopeSpec()},
        {"is_gated_mlp": True},
        {"norm": "rms"},
        {"softcap": 5.0},
        {"qk_norm": "head"},
        {"num_heads": 8},  # of 16 dimensions each
        {"intermediate_size": 200},
        {"local_layers": (True, False), "window": 4},
        {"has_final_norm": True},
    ],
)
def test_a_backbone_with_unsupported_layers_is_not_fused(change: dict[str, object]) -> None:
    assert make_fused_backbone(replace(SPEC, **change)).fused_encoder is None  # type: ignore[arg-type]


def test_a_batch_with_unattended_tokens_runs_without_the_fused_encoder() -> None:
    backbone = make_fused_backbone()
    batch = batch_of([6, 9])

    partial = backbone(replace(batch, attended_lens_cpu=(4, 9)))

    assert not torch.equal(partial[:6], backbone(batch)[:6])
    assert cosine_similarity(partial[6:].float(), backbone(batch)[6:].float(), dim=-1).min() > 0.9995


def test_a_float32_backbone_is_not_fused() -> None:
    backbone = Backbone(SPEC).requires_grad_(False)
    randomize(backbone)
    prepack(backbone)

    assert try_fuse_encoder(backbone) is None
