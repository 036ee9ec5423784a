"""Linear layers in fp8 are close to the exact ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity

from cenote.config.device import Device
from cenote.errors import LoadError
from cenote.kernels.cpu_features import CPUFeatures
from cenote.kernels.fp8 import Fp8Linear, Fp8Quantizer, quantize_weight
from cenote.kernels.quantized_linear import WeightOnlyLinear, quantize_module
from cenote.layers.backbone import Backbone
from cenote.layers.post_load import process_weights_after_loading
from cenote.layers.spec import BackboneSpec, RopeSpec
from cenote.loading.linear_formats import resolve_quantization
from cenote.packed_batch import pack_sequences
from tests.tiny import copy_to_device

POST = BackboneSpec(
    vocab_size=50, hidden_size=256, intermediate_size=512, num_layers=3, num_heads=4, num_learned_positions=300,
    has_embed_norm=True, qkv_bias=True, out_bias=True, mlp_bias=True, norm_order="post", has_final_norm=False,
)  # fmt: skip
GATED = BackboneSpec(
    vocab_size=50, hidden_size=256, intermediate_size=512, num_layers=3, num_heads=4, num_kv_heads=2, causal=True,
    rope=RopeSpec(), norm="rms", norm_eps=1e-6, qk_norm="head", is_gated_mlp=True, activation="silu",
)  # fmt: skip


def test_every_row_of_a_weight_keeps_its_precision() -> None:
    torch.manual_seed(0)
    weight = torch.randn(64, 128) * torch.logspace(-6, 3, 64)[:, None]

    values, scales = quantize_weight(weight)

    errors = (values.float() * scales[:, None] - weight).norm(dim=1) / weight.norm(dim=1)
    assert float(errors.max()) < 0.03


def test_a_scale_is_chosen_by_its_quantization_error() -> None:
    weight = torch.full((1, 32), 1.0)
    weight[0, 0] = 448 / 300  # with the smallest scale, 1 would become 300, which fp8 cannot represent

    values, scales = quantize_weight(weight)

    assert float((values.float() * scales[:, None] - weight)[0, 1:].abs().max()) < 0.005


def test_a_row_of_zeros_stays_zero() -> None:
    values, scales = quantize_weight(torch.zeros(16, 16))

    assert not (values.float() * scales[:, None]).any()


def test_a_weight_that_was_fp8_keeps_its_values() -> None:
    torch.manual_seed(0)
    stored = (torch.randn(64, 128) * 100).clamp(-448, 448).to(torch.float8_e4m3fn)
    exact = stored.float() * torch.rand(64, 1)

    values, scales = quantize_weight(exact)

    torch.testing.assert_close(values.float() * scales[:, None], exact, rtol=1e-6, atol=1e-6)


def quantized_layers(hidden_size: int, num_layers: int = 2) -> set[str]:
    spec = replace(GATED, hidden_size=hidden_size, num_layers=num_layers)
    with torch.device("meta"):
        return set(Fp8Quantizer(multiplies_fp8=True).select(Backbone(spec)))


def test_the_output_projection_is_quantized_in_wide_models_only() -> None:
    narrow = {"layers.0.mixer.qkv", "layers.0.mlp.up", "layers.0.mlp.down"}

    assert quantized_layers(256) == narrow
    assert quantized_layers(4096) == narrow | {"layers.0.mixer.out"}


def test_the_last_block_is_not_quantized_unless_it_is_the_only_one() -> None:
    assert {path.split(".")[1] for path in quantized_layers(256, num_layers=3)} == {"0", "1"}
    assert {path.split(".")[1] for path in quantized_layers(256, num_layers=1)} == {"0"}


@pytest.mark.parametrize("spec", [POST, GATED], ids=["post", "gated"])
def test_fp8_weights_are_dequantized_where_products_are_not_supported(spec: BackboneSpec) -> None:
    torch.manual_seed(0)
    backbone = Backbone(spec).requires_grad_(False)
    for name, parameter in backbone.named_parameters():
        nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.05)
    backbone.prepare_buffers(torch.device("cpu"), torch.float32)
    batch = pack_sequences([list(range(50)) * 4, [7, 8, 9]])
    with torch.inference_mode():
        exact = backbone(batch)

        quantize_module(backbone, Fp8Quantizer(multiplies_fp8=False))
        quantized = backbone(batch)

    assert isinstance(backbone.layers[0].mlp.down, WeightOnlyLinear)
    assert float(cosine_similarity(quantized, exact).mean()) > 0.985


def test_fp8_on_a_cpu_is_refused() -> None:
    with pytest.raises(LoadError, match="quantization=fp8 needs a GPU"):
        resolve_quantization("fp8", Device("cpu"), CPUFeatures("x86", frozenset()))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("spec", [POST, GATED], ids=["post", "gated"])
def test_states_in_fp8_are_close_to_the_exact_ones(spec: BackboneSpec) -> None:
    torch.manual_seed(0)
    device = torch.device("cuda")
    backbone = Backbone(spec).to(device)
    for name, parameter in backbone.named_parameters():
        nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.05)
    backbone.prepare_buffers(device, torch.float32)
    batch = copy_to_device(pack_sequences([list(range(50)) * 4, [7, 8, 9]]), "cuda")

    with torch.inference_mode():
        exact = backbone(batch)
        backbone = backbone.bfloat16()
        backbone.prepare_buffers(device, torch.bfloat16)
        process_weights_after_loading(backbone, device, "fp8")
        quantized = backbone(batch)

    assert isinstance(backbone.layers[0].mlp.down, Fp8Linear)
    assert not isinstance(backbone.layers[-1].mlp.down, Fp8Linear)
    assert float(cosine_similarity(quantized.float(), exact).mean()) > 0.985
