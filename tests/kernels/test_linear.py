"""Prepacked and quantized linear layers equal plain ones up to the precision of their dtype."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity
from torch.testing import assert_close

from cenote.kernels import native_library
from cenote.kernels.activations import ACTIVATIONS
from cenote.kernels.cpu.library import ACTIVATION_CODES, load_amx_level
from cenote.kernels.cpu.quantize import quantize_int8
from cenote.kernels.linear import ONEDNN_ACTIVATIONS, PrepackedLinear, can_prepack_bfloat16
from cenote.kernels.quantized_linear import (
    BLOCK_ELEMENTS,
    DEQUANTIZED_ELEMENTS,
    WeightOnlyLinear,
    quantize_module,
    quantize_pieces,
)
from cenote.kernels.smoothquant import record_input_max
from cenote.layers.backbone import Backbone
from cenote.layers.int8 import Int8Linear, Int8Quantizer, quantize_tensor
from cenote.layers.linear import Linear
from cenote.layers.pack_linears import prepack
from cenote.layers.packed_linear import PackedLinearModule, pack_linear
from cenote.layers.spec import BackboneSpec, RopeSpec
from cenote.layers.torch_dtypes import to_array
from cenote.packed_batch import PackedBatch, pack_sequences
from tests.tiny import SEQUENCES, randomize

needs_bf16 = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and can_prepack_bfloat16()),
    reason="oneDNN has no fast prepacked bfloat16 on this processor",
)
needs_amx = pytest.mark.skipif(
    not native_library.is_available(), reason="needs a CPU with AMX and the compiled native kernels"
)


def linear(inputs: int, outputs: int, activation: str | None = None, *, bias: bool = True) -> Linear:
    layer = Linear(inputs, outputs, bias=bias, activation=activation).requires_grad_(False)
    randomize(layer, std=0.1)
    return layer


def rows(count: int, width: int) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count)).bfloat16()


def exact_output(layer: Linear, x: Tensor) -> Tensor:
    out = nn.functional.linear(x.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double())
    return out if layer.activation is None else ACTIVATIONS[layer.activation](out)


def to_int8(module: nn.Module) -> None:
    quantize_module(module, Int8Quantizer(multiplies_int8=True))


def weight_only(layer: Linear) -> WeightOnlyLinear:
    return WeightOnlyLinear(layer, quantize_tensor(layer.weight), layer.weight.dtype)


def torch_int8(layer: Linear) -> Int8Linear:
    return Int8Linear(weight_only(layer), quantize_tensor(layer.weight))


def amx_layer(layer: Linear, activation: str | None) -> PackedLinearModule:
    return pack_linear(layer, activation, "bfloat16", level=load_amx_level())


def amx_int8(layer: Linear) -> PackedLinearModule:
    quantized = quantize_int8(to_array(layer.weight))
    return pack_linear(layer, layer.activation, "int8", quantized=quantized, level=load_amx_level())


@needs_bf16
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", list(ONEDNN_ACTIVATIONS))
@pytest.mark.parametrize("count", [1, 7, 64])
def test_a_prepacked_layer_computes_the_same(count: int, activation: str | None, bias: bool) -> None:
    layer = linear(48, 80, activation, bias=bias).bfloat16()
    x = rows(count, 48)

    with torch.inference_mode():
        ours = PrepackedLinear(layer, layer.activation)(x)

    assert ours.dtype == torch.bfloat16
    assert_close(ours.double(), exact_output(layer, x), rtol=2**-7, atol=2**-7)


@needs_amx
@pytest.mark.parametrize("activation", ACTIVATION_CODES)
@pytest.mark.parametrize("count", [0, 1, 16, 33, 300])
@pytest.mark.parametrize(("inputs", "outputs"), [(32, 32), (96, 50), (1120, 200)])
def test_amx_computes_the_same(inputs: int, outputs: int, count: int, activation: str | None) -> None:
    layer = linear(inputs, outputs, activation, bias=count != 16).bfloat16()
    x = rows(count, inputs)

    ours = amx_layer(layer, activation)(x)

    assert ours.shape == (count, outputs)
    assert_close(ours.double(), exact_output(layer, x), rtol=2**-8, atol=2e-5)


@needs_amx
@pytest.mark.parametrize("count", [0, 1, 33, 300])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 32), (128, 50), (2240, 200)])
def test_int8_on_amx_computes_what_torch_computes(inputs: int, outputs: int, count: int) -> None:
    layer = linear(inputs, outputs, "gelu").bfloat16()
    x = rows(count, inputs)
    x[:1] = 0

    ours, theirs = amx_int8(layer)(x), torch_int8(layer)(x)

    if count:
        # not bitwise: a value halfway between two integers may be rounded either way
        assert_close(ours, theirs, rtol=2**-7, atol=0.02 * theirs.float().std().item())
        assert cosine_similarity(ours.double().flatten(), exact_output(layer, x).flatten(), dim=0) > 0.999
    assert ours.shape == theirs.shape


@pytest.mark.parametrize("make", [Linear, nn.Linear])
def test_int8_in_plain_torch_is_close_to_the_exact_result(make: type[nn.Linear]) -> None:
    layer = make(64, 48, bias=True).requires_grad_(False)
    randomize(layer, std=0.1)
    x = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(layer)

    to_int8(model)

    assert type(model[0]) is Int8Linear
    assert cosine_similarity(model(x), layer(x), dim=-1).min() > 0.999


@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_weights_alone_are_dequantized_in_blocks(
    dtype: torch.dtype, activation: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DEQUANTIZED_ELEMENTS, "cpu", 64 * 7)  # 7 rows at a time
    layer, x = linear(64, 48, activation).to(dtype), torch.randn(3, 5, 64).to(dtype)
    values, scales = quantize_tensor(layer.weight)

    ours = weight_only(layer)(x)

    exact = Linear(64, 48, bias=True, activation=activation)
    exact.weight.data, exact.bias.data = values.float() * scales[:, None], layer.bias.float()
    assert ours.dtype == dtype and ours.shape == (3, 5, 48)
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    assert_close(ours.float(), exact(x.float()).detach(), rtol=tolerance, atol=tolerance)


def test_blocks_of_several_pieces_are_quantized_as_one_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BLOCK_ELEMENTS, "cpu", 32 * 3)  # 3 rows at a time
    pieces = [torch.randn(rows, 32).bfloat16() for rows in (5, 1, 7)]

    values, scales = quantize_pieces(pieces, quantize_tensor, torch.int8, torch.device("cpu"))

    expected_values, expected_scales = quantize_tensor(torch.cat(pieces))
    assert torch.equal(values, expected_values) and torch.equal(scales, expected_scales)


def test_a_cpu_without_int8_units_keeps_the_dtype_of_the_activations() -> None:
    model = nn.Sequential(linear(64, 96, "gelu"), linear(96, 64))
    x = torch.randn(4, 64)
    expected = model(x)

    quantize_module(model, Int8Quantizer(multiplies_int8=False))

    assert [type(layer) for layer in model] == [WeightOnlyLinear, WeightOnlyLinear]
    assert cosine_similarity(model(x), expected, dim=-1).min() > 0.9995


@needs_amx
@pytest.mark.parametrize("int8", [False, True])
def test_a_row_gives_the_same_bits_in_any_batch(int8: bool) -> None:
    plain = linear(1088, 96, "gelu").bfloat16()
    layer = amx_int8(plain) if int8 else amx_layer(plain, "gelu")
    x = rows(200, 1088)

    batched = layer(x)

    for row in (0, 15, 16, 40, 199):
        assert torch.equal(layer(x[row : row + 1]), batched[row : row + 1])
    assert torch.equal(layer(x[3:60]), batched[3:60])


@needs_amx
def test_nan_inputs_give_nan_outputs() -> None:
    x = rows(4, 64)
    x[1, 3] = torch.nan
    x[2, 5] = torch.inf
    for activation in ACTIVATION_CODES:
        for int8 in (False, True):
            plain = linear(64, 32, activation).bfloat16()
            finite = (amx_int8(plain) if int8 else amx_layer(plain, activation))(x).isfinite().all(dim=1)
            assert finite[[0, 3]].all()
            assert not finite[1]


@needs_amx
def test_views_and_more_dimensions_are_supported() -> None:
    layer = amx_layer(linear(32, 64).bfloat16(), None)
    x = rows(12, 64)[:, ::2].unflatten(0, (3, 4))

    assert torch.equal(layer(x), layer(x.contiguous().flatten(0, 1)).unflatten(0, (3, 4)))


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("make_layer", [PrepackedLinear, pytest.param(amx_layer, marks=needs_amx)])
@needs_bf16
def test_the_fused_activation_is_the_requested_one(
    make_layer: Callable[[Linear, str | None], nn.Module], activation: str
) -> None:
    layer = linear(32, 32, activation, bias=False)
    layer.weight.data.copy_(torch.eye(32))
    x = torch.linspace(-4, -2, 32).expand(3, 32).bfloat16()  # where the two differ by 10% or more

    with torch.inference_mode():
        ours = make_layer(layer.bfloat16(), layer.activation)(x)

    assert_close(ours.double(), ACTIVATIONS[activation](x.double()), rtol=2**-6, atol=1e-6)


@needs_bf16
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("native_code", [False, pytest.param(True, marks=needs_amx)])
@pytest.mark.parametrize("gated", [False, True])
def test_a_backbone_can_be_prepacked(
    gated: bool, native_code: bool, int8: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_library, "is_available", lambda: native_code)
    spec = BackboneSpec(
        vocab_size=160,
        hidden_size=64,
        intermediate_size=128,
        num_layers=2,
        num_heads=4,
        rope=RopeSpec(),
        is_gated_mlp=gated,
        qkv_bias=True,
        mlp_bias=True,
    )
    backbone = Backbone(spec).requires_grad_(False)
    randomize(backbone)
    backbone.bfloat16()
    backbone.prepare_buffers(torch.device("cpu"), torch.bfloat16)
    with torch.inference_mode():
        plain = backbone(pack_sequences(SEQUENCES))
        if int8:
            to_int8(backbone)
        prepack(backbone)
        packed = backbone(pack_sequences(SEQUENCES))

    classes = [type(module) for module in backbone.modules()]
    assert classes.count(PackedLinearModule if native_code else Int8Linear if int8 else PrepackedLinear) == 2 * 4
    assert Linear not in classes
    assert cosine_similarity(packed.float(), plain.float(), dim=-1).min() > (0.97 if int8 else 0.999)


@needs_amx
def test_layers_that_share_weights_are_packed_once() -> None:
    layer = linear(32, 32).bfloat16()
    model = nn.Sequential(layer, nn.ReLU(), layer, linear(32, 32).bfloat16())
    model[2] = Linear(32, 32, bias=True)
    model[2].weight, model[2].bias = layer.weight, layer.bias

    prepack(model)

    assert model[0] is model[2] is not model[3]


@needs_bf16
def test_layers_without_a_fused_activation_are_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_library, "is_available", lambda: False)
    model = nn.Sequential(linear(8, 8, "silu"), linear(8, 8, "gelu")).bfloat16()

    prepack(model)

    assert [type(layer) for layer in model] == [Linear, PrepackedLinear]


def test_float32_layers_are_not_replaced() -> None:
    model = nn.Sequential(linear(8, 8), nn.ReLU(), linear(8, 8))

    prepack(model)

    assert [type(layer) for layer in model] == [Linear, nn.ReLU, Linear]


class OneWideLayer(nn.Module):
    """A model with an outlier channel: its states are a hundred times larger there."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(160, 64).requires_grad_(False)
        self.wide = linear(64, 96)
        randomize(self.table)
        self.table.weight[:, 7] *= 100
        self.bfloat16()

    def forward(self, batch: PackedBatch) -> Tensor:
        return self.wide(self.table(batch.token_ids))  # type: ignore[no-any-return]


@needs_bf16
@pytest.mark.parametrize("native_code", [False, pytest.param(True, marks=needs_amx)])
def test_an_outlier_channel_does_not_spoil_the_others_in_int8(
    native_code: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_library, "is_available", lambda: native_code)
    model, unscaled, batch = OneWideLayer(), OneWideLayer(), pack_sequences(SEQUENCES)
    expected = model(batch).double()
    with monkeypatch.context() as patch:
        patch.setattr("cenote.layers.int8.record_input_max", lambda module, layers: {})
        to_int8(unscaled)

    to_int8(model)

    assert isinstance(model.wide, PackedLinearModule if native_code else Int8Linear)
    error, before = ((x(batch).double() - expected).norm() / expected.norm() for x in (model, unscaled))
    assert error < 0.3 * before


def test_a_module_without_an_embedding_table_gets_no_smooth_scales() -> None:
    model = nn.Sequential(linear(8, 16))

    assert record_input_max(model, [model[0]]) == {}
