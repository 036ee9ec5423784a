"""Linear layers multiply in float16 or int8 where the results are close enough to float32."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn.functional import cosine_similarity

from cenote.config.engine import Quantization
from cenote.kernels.cpu.library import Format, supports_format, unquantized_format
from cenote.layers import matmul_format
from cenote.layers.backbone import Backbone
from cenote.layers.matmul_format import MatmulReport, prepare_matmuls
from cenote.layers.packed_linear import PackedLinearModule
from tests.kernels.backbones import SPEC, batch_of, make_backbone

CPU = torch.device("cpu")
needs_float16 = pytest.mark.skipif(not supports_format("float16"), reason="needs fp16 instructions")
needs_int8 = pytest.mark.skipif(not supports_format("int8"), reason="needs int8 products of a CPU level")


def prepare(
    quantization: Quantization | None = None, matmul_dtype: torch.dtype = torch.float32
) -> tuple[Backbone, MatmulReport]:
    backbone = make_backbone(SPEC)
    report = prepare_matmuls(backbone, backbone, CPU, quantization, matmul_dtype, batch_of([5, 9, 30]))
    assert report is not None
    return backbone, report


def formats(backbone: Backbone) -> list[Format]:
    return [layer.format for layer in backbone.modules() if isinstance(layer, PackedLinearModule)]


@pytest.mark.skipif(not supports_format("float32"), reason="needs the C library")
def test_float32_is_not_compared_with_itself() -> None:
    backbone, report = prepare()

    assert set(formats(backbone)) == {"float32"}
    assert report.cosine is None


@pytest.mark.parametrize(
    ("quantization", "format"),
    [pytest.param(None, "float16", marks=needs_float16), pytest.param("int8", "int8", marks=needs_int8)],
)
def test_the_report_has_the_measured_cosine(quantization: Quantization | None, format: Format) -> None:
    backbone, report = prepare(quantization, torch.float16)

    assert set(formats(backbone)) == {report.format} == {format}
    assert report.cosine is not None and matmul_format.MIN_COSINE[format] <= report.cosine < 1
    assert f"{format} products, {report.level} kernels, cosine 0.99" in str(report)


@needs_float16
def test_a_model_that_differs_in_float16_is_computed_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(matmul_format.MIN_COSINE, "float16", 1.0)

    backbone, report = prepare(None, torch.float16)

    assert set(formats(backbone)) == {"float32"} and report.format == "float32"
    batch = batch_of([5, 40])
    assert torch.equal(backbone(batch), prepare()[0](batch))


@needs_int8
def test_the_worst_layers_of_an_int8_model_are_not_quantized(monkeypatch: pytest.MonkeyPatch) -> None:
    _, plain = prepare("int8")
    assert plain.cosine is not None
    monkeypatch.setitem(matmul_format.MIN_COSINE, "int8", plain.cosine + 1e-6)

    backbone, report = prepare("int8")

    assert 0 < formats(backbone).count(unquantized_format()) == report.num_unquantized < len(formats(backbone))
    assert report.cosine is not None and report.cosine > plain.cosine
    assert re.search(rf", {report.num_unquantized} layers? in {unquantized_format()}, ", str(report))
    batch = batch_of([5, 40])
    exact = make_backbone(SPEC)(batch)
    assert cosine_similarity(backbone(batch), exact, dim=-1).min() > 0.995


@needs_int8
def test_an_int8_model_that_never_comes_close_is_not_quantized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(matmul_format.MIN_COSINE, "int8", 1.0)

    backbone, report = prepare("int8")

    assert set(formats(backbone)) == {unquantized_format()} == {report.format}
