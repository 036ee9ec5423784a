"""The kernels of every CPU level equal plain torch, and a row does not depend on the other rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity

from cenote.kernels.activations import ACTIVATIONS
from cenote.kernels.cpu import library
from cenote.kernels.cpu.library import CPULevel, Format
from cenote.layers.backbone import Backbone, Block
from cenote.layers.fused_encoder import FusedEncoder, try_fuse_encoder
from cenote.layers.matmul_format import prepare_matmuls
from cenote.layers.pack_linears import pack_linears
from cenote.layers.packed_linear import PackedLinearModule, pack_linear
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
    make_backbone,
    sequences,
)
from tests.kernels.levels import LEVELS, needs_level, use_level

pytestmark = needs_level

LENGTHS = [1, 5, 16, 17, 33, 64, 2, 100, 7]


# relative error of a linear layer, and distance of 1 from the cosine of an encoder
LINEAR_ERROR: dict[Format, float] = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 6e-3, "int8": 1.5e-2}
ENCODER_ERROR: dict[Format, float] = {"float32": 1e-10, "float16": 1e-4, "bfloat16": 5e-4, "int8": 5e-3}


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[CPULevel]:
    with use_level(request.param, monkeypatch) as found:
        assert found is not None
        yield found


def make_linear(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(inputs + outputs)
    return nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return ((found - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize(
    ("inputs", "outputs", "rows"), [(384, 384, 64), (1536, 100, 13), (37, 50, 5), (3, 1, 1), (700, 12, 300)]
)
def test_a_packed_layer_equals_torch(level: CPULevel, inputs: int, outputs: int, rows: int) -> None:
    linear, x = make_linear(inputs, outputs), torch.randn(rows, inputs)
    exact = linear.double()(x.double())
    linear.float()

    for format in level.products:
        found = pack_linear(linear, None, format)(x)
        assert relative_error(found, exact) < LINEAR_ERROR[format], format


@pytest.mark.parametrize("activation", library.ACTIVATION_CODES[1:])
def test_activations_equal_torch(level: CPULevel, activation: str) -> None:
    linear = make_linear(64, 24)
    x = torch.cat((torch.randn(20, 64), torch.zeros(1, 64), 40 * torch.randn(20, 64)))
    exact = ACTIVATIONS[activation](linear.double()(x.double()))

    found = pack_linear(linear.float(), activation, "float32")(x)

    assert torch.allclose(found.double(), exact, atol=2e-6, rtol=2e-6)


def test_float16_rows_of_any_size_neither_overflow_nor_vanish(level: CPULevel) -> None:
    if "float16" not in level.products:
        pytest.skip(f"level {level.name} has no float16 products")
    linear = make_linear(384, 48, bias=False)
    x = torch.randn(7, 384) * torch.tensor([1e-12, 1e-6, 1.0, 1e3, 1e6, 1e12, 0.0])[:, None]
    linear.weight *= torch.logspace(-6, 6, 48)[:, None]
    exact = x.double() @ linear.weight.double().T

    found = pack_linear(linear, None, "float16")(x)

    row_error = (found - exact).norm(dim=1) / exact.norm(dim=1).clamp(min=1e-30)
    assert row_error.max() < 1e-2  # the largest outputs, a few of 48, decide
    assert found.isfinite().all()


@pytest.mark.parametrize(("inputs", "outputs", "rows"), [(1536, 100, 13), (37, 50, 5), (3, 1, 1)])
def test_bfloat16_products_equal_those_of_the_rounded_inputs(
    level: CPULevel, inputs: int, outputs: int, rows: int
) -> None:
    if "bfloat16" not in level.products:
        pytest.skip(f"level {level.name} has no bfloat16 products")
    linear, x = make_linear(inputs, outputs, bias=False), torch.randn(rows, inputs)
    exact = x.bfloat16().double() @ linear.weight.bfloat16().double().T

    assert relative_error(pack_linear(linear, None, "bfloat16")(x), exact) < 1e-5


def test_int8_sums_are_exact(level: CPULevel) -> None:
    if "int8" not in level.products:
        pytest.skip(f"level {level.name} has no int8 products")
    linear = make_linear(512, 30, bias=False)
    linear.weight.copy_(torch.randint(-127, 128, linear.weight.shape))
    linear.weight[:, 0] = 127  # all scales are 1
    x = torch.randint(-127, 128, (11, 512)).float()
    x[:, 0] = -127

    assert torch.equal(pack_linear(linear, None, "int8")(x), x @ linear.weight.T)


def test_nan_stays_in_its_row(level: CPULevel) -> None:
    linear, x = make_linear(64, 24), torch.randn(9, 64)
    x[3, 5] = float("nan")
    for format in level.products:  # with int8 by the scale of the row
        found = pack_linear(linear, "gelu", format)(x)
        assert found[3].isnan().all(), format
        assert found[[row for row in range(9) if row != 3]].isfinite().all(), format


def make_fused_backbone(spec: BackboneSpec, format: Format) -> Backbone:
    backbone = make_backbone(spec)
    assert pack_linears(backbone, format)
    backbone.fused_encoder = try_fuse_encoder(backbone)
    return backbone


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"activation": "relu", "num_kv_heads": 2},
        {"causal": True, "hidden_size": 64, "num_heads": 1},
        {"window": 8, "local_layers": (True, False)},
        {"intermediate_size": 200, "position_offset": 2},
        {"num_token_types": 0, "num_learned_positions": 0, "norm_bias": False, "mlp_bias": False},
        {"embedding_size": 64},
        {"has_embed_norm": False},
        {"hidden_size": 100, "num_heads": 4, "intermediate_size": 130},
        {"norm_order": "pre", "has_final_norm": True},
        {"norm_order": "pre"},
        LOCAL_ENCODER,
        DECODER,
        FOUR_NORMS,
        OUTPUT_NORMS,
        SCALED_RESIDUALS,
        {**DECODER, "rope": RopeSpec(rotary_dim=16, interleaved=True), "norm": "layer"},
        {"relative_bias": RelativeBiasSpec(num_buckets=32)},
        {"relative_bias": RelativeBiasSpec(), "is_gated_mlp": True, "num_learned_positions": 0},
        {"relative_bias": RelativeBiasSpec(num_buckets=8), "causal": True, "norm_order": "pre", "softcap": 2.0},
    ],
)
def test_a_fused_encoder_equals_float64(level: CPULevel, change: dict[str, object]) -> None:
    spec, batch = replace(SPEC, **change), batch_of(LENGTHS, typed=True)  # type: ignore[arg-type]
    exact_backbone = make_backbone(spec).double()
    exact_backbone.prepare_buffers(torch.device("cpu"), torch.float64)
    exact = exact_backbone(batch)

    for format in level.products:
        backbone = make_fused_backbone(spec, format)
        assert isinstance(backbone.fused_encoder, FusedEncoder)
        error = 1 - cosine_similarity(backbone(batch).double(), exact, dim=-1)
        assert error.max() < ENCODER_ERROR[format], format


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("change", [{}, LOCAL_ENCODER, FOUR_NORMS])
def test_a_sequence_gives_the_same_bits_in_any_batch_and_with_any_number_of_threads(
    level: CPULevel, change: dict[str, object], threads: int
) -> None:
    lengths, before = [*LENGTHS, *([40] * 30), 300, 1], torch.get_num_threads()
    for format in level.products:
        backbone = make_fused_backbone(replace(SPEC, **change), format)  # type: ignore[arg-type]
        expected = backbone(batch_of(lengths))
        torch.set_num_threads(threads)
        try:
            assert torch.equal(backbone(batch_of(lengths)), expected), format
            for tokens, states in zip(sequences(lengths), expected.split(lengths), strict=True):
                assert torch.equal(backbone(pack_sequences([tokens])), states), format
        finally:
            torch.set_num_threads(before)


def test_attention_with_values_too_large_for_float16_stays_finite(level: CPULevel) -> None:
    if "float16" not in level.products:
        pytest.skip(f"level {level.name} has no float16 products")
    backbone, batch = make_backbone(SPEC), batch_of([30, 9])
    for layer in backbone.layers:
        layer.mixer.qkv.bias[256:] += 40_000  # values: their sums exceed 65504
        layer.mixer.qkv.weight[:128] *= 300  # queries
    exact = backbone(batch)
    assert pack_linears(backbone, "float16")
    backbone.fused_encoder = try_fuse_encoder(backbone)

    assert (1 - cosine_similarity(backbone(batch), exact, dim=-1)).max() < 1e-3


def check_float16_encoder(
    backbone: Backbone, exact: torch.Tensor, batch: PackedBatch, error: float = ENCODER_ERROR["float16"]
) -> None:
    assert pack_linears(backbone, "float16")
    backbone.fused_encoder = try_fuse_encoder(backbone)
    assert isinstance(backbone.fused_encoder, FusedEncoder)
    assert (1 - cosine_similarity(backbone(batch), exact, dim=-1)).max() < error


@pytest.mark.parametrize("size", [1e-8, 1e-4, 1.0, 1e4, 1e8])
def test_intermediate_values_of_any_size_neither_overflow_nor_vanish_in_float16(level: CPULevel, size: float) -> None:
    if "float16" not in level.products:
        pytest.skip(f"level {level.name} has no float16 products")
    backbone, batch = make_backbone(replace(SPEC, activation="relu")), batch_of([300, 200, 5])
    exact = backbone(batch)
    for layer in backbone.layers:  # the results stay the same
        layer.mlp.up.weight *= size
        layer.mlp.up.bias *= size
        layer.mlp.down.weight /= size

    check_float16_encoder(backbone, exact, batch)


def set_large_inputs(layer: Block) -> None:
    layer.mixer_norm.weight *= 1e6
    layer.mixer_norm.bias *= 1e6


def set_large_bias(layer: Block) -> None:
    layer.mlp.up.bias[5] = 1e6
    layer.mlp.down.weight[:, 5] *= 1e-6


def set_output_that_is_never_positive(layer: Block) -> None:
    layer.mlp.up.weight[2] *= 100
    layer.mlp.up.bias[2] = -1e30


def set_equal_values(layer: Block) -> None:
    # the sums are as large as sums of such inputs and weights can be
    layer.mixer_norm.weight[:] = torch.linspace(0, 0.1, 128)
    layer.mixer_norm.bias[:] = 15.8
    layer.mlp.up.weight[:] = 0.99
    layer.mlp.down.weight[:] = torch.linspace(0.5, 0.99, 128)[:, None]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (set_large_inputs, 1e-4),
        (set_large_bias, 1e-4),
        (set_output_that_is_never_positive, 1e-4),
        (set_equal_values, 1e-3),  # the rounding errors of equal values do not cancel out
    ],
)
@pytest.mark.parametrize("activation", ["gelu", "relu", "silu"])
def test_extreme_intermediate_values_neither_overflow_nor_vanish_in_float16(
    level: CPULevel, change: Callable[[Block], None], error: float, activation: str
) -> None:
    if "float16" not in level.products:
        pytest.skip(f"level {level.name} has no float16 products")
    backbone, batch = make_backbone(replace(SPEC, activation=activation)), batch_of([30, 9])
    for layer in backbone.layers:
        change(layer)

    check_float16_encoder(backbone, backbone(batch), batch, error)


@pytest.mark.parametrize("lengths", [[0, 3], [3, 0, 0, 40], [40, 0], [0, 200], [0, 0, 100, 0, 100, 0, 0]])
def test_a_sequence_without_tokens_changes_no_other(level: CPULevel, lengths: list[int]) -> None:
    backbone = make_fused_backbone(SPEC, "float32")

    assert torch.equal(backbone(batch_of(lengths)), backbone(batch_of([length for length in lengths if length])))


def test_an_id_out_of_range_raises_index_error_as_in_torch(level: CPULevel) -> None:
    backbone = make_fused_backbone(SPEC, "float32")

    for ids in ([3, 200], [-1], [1] * 513):
        with pytest.raises(IndexError):
            backbone(pack_sequences([ids]))


def test_a_backbone_with_attention_sinks_is_not_fused(level: CPULevel) -> None:
    backbone = make_backbone(SPEC)
    backbone.layers[0].mixer.sinks = torch.zeros(4)
    exact = backbone(batch := batch_of([5, 20]))
    assert pack_linears(backbone, "float32")

    backbone.fused_encoder = try_fuse_encoder(backbone)

    assert backbone.fused_encoder is None
    assert torch.allclose(backbone(batch), exact, atol=1e-4)


def test_layers_with_different_scales_are_not_fused(level: CPULevel) -> None:
    backbone = make_backbone(SPEC)
    backbone.layers[1].mixer.scale /= 2
    assert pack_linears(backbone, "float32")

    assert try_fuse_encoder(backbone) is None


def test_a_batch_with_unattended_tokens_runs_without_the_fused_encoder(level: CPULevel) -> None:
    backbone, batch = make_fused_backbone(SPEC, "float32"), batch_of([6, 9])

    partial = backbone(replace(batch, attended_lens_cpu=(4, 9)))

    assert not torch.allclose(partial[:6], backbone(batch)[:6], atol=1e-3)
    assert torch.allclose(partial[6:], backbone(batch)[6:], atol=1e-5)


def make_bfloat16_backbone(**change: object) -> Backbone:
    backbone = make_backbone(replace(SPEC, **change)).bfloat16()  # type: ignore[arg-type]
    backbone.prepare_buffers(torch.device("cpu"), torch.bfloat16)
    return backbone


def test_bfloat16_layers_are_left_to_other_kernels_by_other_formats(level: CPULevel) -> None:
    backbone = make_bfloat16_backbone()

    assert not any(pack_linears(backbone, format) for format in level.products if format != "bfloat16")
    assert try_fuse_encoder(backbone) is None


@pytest.mark.parametrize("change", [{}, LOCAL_ENCODER, DECODER, {"relative_bias": RelativeBiasSpec()}])
def test_a_bfloat16_model_runs_in_one_call(level: CPULevel, change: dict[str, object]) -> None:
    if "bfloat16" not in level.products:
        pytest.skip(f"level {level.name} has no bfloat16 products")
    backbone, batch = make_bfloat16_backbone(**change), batch_of(LENGTHS, typed=True)
    exact_backbone = make_bfloat16_backbone(**change).double()
    exact_backbone.prepare_buffers(torch.device("cpu"), torch.float64)

    report = prepare_matmuls(backbone, backbone, torch.device("cpu"), None, torch.bfloat16, batch)

    assert str(report) == f"bfloat16 products, {level.name} kernels"
    assert isinstance(backbone.fused_encoder, FusedEncoder)
    found = backbone(batch)
    assert found.dtype is torch.bfloat16
    assert (1 - cosine_similarity(found.double(), exact_backbone(batch), dim=-1)).max() < 1e-4
    layer_by_layer = backbone(replace(batch, attended_lens_cpu=tuple(LENGTHS)))
    assert layer_by_layer.dtype is torch.bfloat16
    assert (1 - cosine_similarity(layer_by_layer.float(), found.float(), dim=-1)).max() < 1e-3


def test_a_bfloat16_model_with_attention_sinks_is_left_to_other_kernels(level: CPULevel) -> None:
    backbone = make_bfloat16_backbone()
    backbone.layers[0].mixer.sinks = torch.zeros(4, dtype=torch.bfloat16)

    report = prepare_matmuls(backbone, backbone, torch.device("cpu"), None, torch.bfloat16, batch_of([5, 20]))

    assert report is None or report.level == "amx"
    assert not any(isinstance(layer, PackedLinearModule) for layer in backbone.modules())
