"""With AMX, all layers of a backbone in one call equal its blocks run one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cosine_similarity

from cenote.kernels import native_library
from cenote.kernels.quantized_linear import quantize_module
from cenote.layers import matmul_format
from cenote.layers.backbone import Backbone
from cenote.layers.fused_encoder import FusedEncoder, try_fuse_encoder
from cenote.layers.int8 import Int8Quantizer
from cenote.layers.int8_check import Int8Check
from cenote.layers.matmul_format import prepare_matmuls
from cenote.layers.pack_linears import prepack
from cenote.layers.packed_linear import PackedLinearModule
from cenote.layers.spec import BackboneSpec, RelativeBiasSpec, RopeSpec
from cenote.packed_batch import PackedBatch, pack_sequences
from tests.kernels.backbones import (
    DECODER,
    FOUR_NORMS,
    LOCAL_ENCODER,
    OUTPUT_NORMS,
    SCALED_RESIDUALS,
    SPEC,
    batch_of,
    sequences,
)
from tests.tiny import randomize

pytestmark = pytest.mark.skipif(
    not native_library.is_available(), reason="needs a CPU with AMX and the compiled native kernels"
)

CPU = torch.device("cpu")
LENGTHS = [1, 5, 16, 17, 33, 64, 2, 100, 7]


def make_backbone(spec: BackboneSpec) -> Backbone:
    backbone = Backbone(spec).requires_grad_(False)
    randomize(backbone, std=0.1)
    return backbone.bfloat16()


def make_fused_backbone(spec: BackboneSpec = SPEC, *, int8: bool = False) -> Backbone:
    backbone = make_backbone(spec)
    backbone.prepare_buffers(CPU, torch.bfloat16)
    if int8:
        quantize_module(backbone, Int8Quantizer(multiplies_int8=True))
    prepack(backbone)
    backbone.fused_encoder = try_fuse_encoder(backbone)
    return backbone


def keeps_tiles(backbone: Backbone) -> bool:
    assert isinstance(backbone.fused_encoder, FusedEncoder)
    return backbone.fused_encoder.encoder.keeps_tiles


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

    assert keeps_tiles(backbone)
    exact = make_backbone(spec).double()(batch)
    fused, blocks = (x.double() for x in (backbone(batch), run_without_fused_encoder(backbone, batch)))

    error, error_of_blocks = (1 - cosine_similarity(x, exact, dim=-1) for x in (fused, blocks))
    assert error.max() < (0.02 if int8 else 5e-4)
    assert error.mean() < 1.1 * error_of_blocks.mean()  # sums are rounded less often


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("int8", [False, True])
def test_a_sequence_gives_the_same_bits_in_any_batch_and_with_any_number_of_threads(int8: bool, threads: int) -> None:
    assert_bits_do_not_depend_on_the_batch(
        make_fused_backbone(replace(SPEC, intermediate_size=640), int8=int8), threads
    )


def assert_bits_do_not_depend_on_the_batch(backbone: Backbone, threads: int) -> None:
    lengths = [*LENGTHS, *([40] * 30), 300, 1]
    before = torch.get_num_threads()
    expected = backbone(batch_of(lengths))
    torch.set_num_threads(threads)
    try:
        assert torch.equal(backbone(batch_of(lengths)), expected)
        for tokens, states in zip(sequences(lengths), expected.split(lengths), strict=True):
            assert torch.equal(backbone(pack_sequences([tokens])), states)
    finally:
        torch.set_num_threads(before)


def test_the_worst_layers_of_an_int8_model_multiply_in_bfloat16_in_the_same_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backbone, batch, quantizer = make_backbone(SPEC), batch_of(LENGTHS), Int8Quantizer(multiplies_int8=True)
    backbone.prepare_buffers(CPU, torch.bfloat16)
    quantize_module(backbone, quantizer)
    check = Int8Check(backbone, backbone, quantizer, batch)
    plain = check.run(prepare_matmuls(backbone, backbone, CPU, None, torch.bfloat16, batch))
    assert plain.cosine is not None and str(plain).startswith("int8 products, amx kernels, cosine 0.99")
    monkeypatch.setitem(matmul_format.MIN_COSINE, "int8", plain.cosine + 1e-6)

    report = check.run(plain)

    formats = [layer.format for layer in backbone.modules() if isinstance(layer, PackedLinearModule)]
    assert 0 < formats.count("bfloat16") == report.num_unquantized < len(formats)
    assert report.cosine is not None and report.cosine > plain.cosine
    assert isinstance(backbone.fused_encoder, FusedEncoder) and not keeps_tiles(backbone)
    exact = make_backbone(SPEC).double()(batch)
    assert cosine_similarity(backbone(batch).double(), exact, dim=-1).min() > 0.98


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


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        {"norm_order": "pre"},
        {"norm_order": "pre", "has_final_norm": True},
        {"relative_bias": RelativeBiasSpec(num_buckets=32)},
        {"rope": RopeSpec()},
        {"is_gated_mlp": True},
        {"norm": "rms"},
        {"softcap": 5.0},
        {"qk_norm": "head"},
        {"num_heads": 8},  # of 16 dimensions each
        {"hidden_size": 192, "num_heads": 16},  # of 12 dimensions
        {"local_layers": (True, False), "window": 4},
        LOCAL_ENCODER,
        DECODER,
        FOUR_NORMS,
        OUTPUT_NORMS,
        SCALED_RESIDUALS,
        {**DECODER, "hidden_size": 512, "intermediate_size": 1600, "num_layers": 1},  # products in several parts
    ],
)
def test_other_layers_run_in_one_call_of_the_level(change: dict[str, object], int8: bool) -> None:
    spec = replace(SPEC, **change)  # type: ignore[arg-type]
    backbone, batch = make_fused_backbone(spec, int8=int8), batch_of(LENGTHS, typed=True)
    exact_backbone = make_backbone(spec).double()
    exact_backbone.prepare_buffers(torch.device("cpu"), torch.float64)
    exact = exact_backbone(batch)

    assert isinstance(backbone.fused_encoder, FusedEncoder)
    assert backbone.fused_encoder.encoder.level.name == "amx"
    fused, blocks = (x.double() for x in (backbone(batch), run_without_fused_encoder(backbone, batch)))

    error, error_of_blocks = (1 - cosine_similarity(x, exact, dim=-1) for x in (fused, blocks))
    assert error.max() < (0.02 if int8 else 5e-4)
    assert error.mean() < 1.1 * error_of_blocks.mean()  # the rows between the products are float32


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("change", [LOCAL_ENCODER, DECODER, FOUR_NORMS])
def test_a_sequence_gives_the_same_bits_in_any_batch_of_the_level(
    change: dict[str, object], int8: bool, threads: int
) -> None:
    assert_bits_do_not_depend_on_the_batch(make_fused_backbone(replace(SPEC, **change), int8=int8), threads)  # type: ignore[arg-type]


@pytest.mark.parametrize("lengths", [[0, 3], [40, 0], [0, 0, 100, 0, 100, 0, 0]])
def test_a_sequence_without_tokens_changes_no_other_in_the_level(lengths: list[int]) -> None:
    backbone = make_fused_backbone(replace(SPEC, **LOCAL_ENCODER))  # type: ignore[arg-type]

    assert torch.equal(backbone(batch_of(lengths)), backbone(batch_of([length for length in lengths if length])))


def test_layers_of_widths_that_tiles_do_not_hold_are_not_fused() -> None:
    assert make_fused_backbone(replace(SPEC, intermediate_size=200)).fused_encoder is None


def test_a_backbone_with_attention_sinks_is_not_fused() -> None:
    backbone = make_fused_backbone()
    backbone.layers[0].mixer.sinks = torch.zeros(4, dtype=torch.bfloat16)

    assert try_fuse_encoder(backbone) is None


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
