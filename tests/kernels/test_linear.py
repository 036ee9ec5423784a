"""Prepacked linear layers equal plain ones as far as bfloat16 goes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from cenote.batch import pack
from cenote.kernels.linear import FUSED, PrepackedLinear, prepack
from cenote.layers.backbone import Backbone
from cenote.layers.linear import ACTIVATIONS, Linear
from cenote.layers.spec import BackboneSpec, RopeSpec
from tests.tiny import SEQUENCES, randomize

needs_bf16 = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()),
    reason="oneDNN has no bfloat16 on this processor",
)


def linear(inputs: int, outputs: int, activation: str | None = None, *, bias: bool = True) -> Linear:
    layer = Linear(inputs, outputs, bias=bias, activation=activation).requires_grad_(False)
    randomize(layer, std=0.1)
    return layer


@needs_bf16
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", list(FUSED))
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_a_prepacked_layer_computes_the_same(rows: int, activation: str | None, bias: bool) -> None:
    layer = linear(48, 80, activation, bias=bias).bfloat16()
    x = torch.randn(rows, 48, generator=torch.Generator().manual_seed(rows)).bfloat16()
    exact = nn.functional.linear(x.double(), layer.weight.double(), layer.bias.double() if bias else None)
    if activation is not None:
        exact = ACTIVATIONS[activation](exact)

    with torch.inference_mode():
        ours = PrepackedLinear(layer, layer.activation)(x)

    assert ours.dtype == torch.bfloat16
    assert_close(ours.double(), exact, rtol=2**-7, atol=2**-7)


@needs_bf16
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_the_fused_activation_is_the_one_asked_for(activation: str) -> None:
    layer = linear(32, 32, activation, bias=False)
    layer.weight.data.copy_(torch.eye(32))
    x = torch.linspace(-4, -2, 32).expand(3, 32).bfloat16()  # where the two differ by a tenth and more

    with torch.inference_mode():
        ours = PrepackedLinear(layer.bfloat16(), layer.activation)(x)

    assert_close(ours.double(), ACTIVATIONS[activation](x.double()), rtol=2**-6, atol=1e-6)


@needs_bf16
@pytest.mark.parametrize("gated", [False, True])
def test_a_whole_backbone_may_be_prepacked(gated: bool) -> None:
    spec = BackboneSpec(
        vocab_size=160,
        hidden_size=32,
        intermediate_size=48,
        num_layers=2,
        num_heads=4,
        rope=RopeSpec(),
        gated=gated,
        qkv_bias=True,
        mlp_bias=True,
    )
    backbone = Backbone(spec).requires_grad_(False)
    randomize(backbone)
    backbone.bfloat16()
    backbone.prepare(torch.device("cpu"), torch.bfloat16)
    with torch.inference_mode():
        plain = backbone(pack(SEQUENCES))
        prepack(backbone)
        packed = backbone(pack(SEQUENCES))

    kinds = [type(module) for module in backbone.modules()]
    assert kinds.count(PrepackedLinear) == 2 * 4
    assert Linear not in kinds
    assert nn.functional.cosine_similarity(packed.float(), plain.float(), dim=-1).min() > 0.999


@needs_bf16
def test_what_cannot_be_fused_is_left_alone() -> None:
    model = nn.Sequential(linear(8, 8, "silu"), linear(8, 8, "gelu")).bfloat16()

    prepack(model)

    assert [type(layer) for layer in model] == [Linear, PrepackedLinear]


def test_float32_is_left_alone() -> None:
    model = nn.Sequential(linear(8, 8), nn.ReLU(), linear(8, 8))

    prepack(model)

    assert [type(layer) for layer in model] == [Linear, nn.ReLU, Linear]
