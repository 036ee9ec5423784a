"""A model that is quantized to int8 while it is read is compared with its checkpoint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from cenote.config.engine import EngineConfig
from cenote.kernels.cpu import format_search
from cenote.kernels.cpu.format_search import MatmulReport
from cenote.kernels.cpu_features import CPUFeatures
from cenote.kernels.quantized_linear import QuantizedLinear
from cenote.layers import post_load
from cenote.layers.matmul_format import describe_matmuls
from cenote.loading.load import load_model
from cenote.loading.loaded_model import LoadedModel
from cenote.packed_batch import pack_sequences
from tests.tiny import save_tiny

BATCH = pack_sequences([[7, 8, 9], list(range(5, 40))])


@pytest.fixture(params=["BertModel", "LlamaModel"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    save_tiny(tmp_path, request.param)
    return tmp_path


@pytest.fixture(params=[frozenset(), frozenset({"amx_int8"})], ids=["weights only", "products"], autouse=True)
def quantizes_while_reading(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Use no kernels of a CPU level, but those of torch."""
    monkeypatch.setattr(post_load, "cpu_features", lambda: CPUFeatures("x86", request.param))
    monkeypatch.setattr("cenote.loading.torch_model.packs_int8", lambda dtype, cpu: False)


def load(folder: Path, quantization: str | None = "int8", **options: Any) -> LoadedModel:
    options = {"device": "cpu", "dtype": "float32", "runtime": "torch", **options}
    config = EngineConfig.from_kwargs(str(folder), quantization=quantization, **options)
    return load_model(config)


def load_and_report(folder: Path, **options: Any) -> tuple[LoadedModel, MatmulReport]:
    model = load(folder, **options)
    assert model.products is not None
    return model, model.products


def compute(model: LoadedModel) -> Tensor:
    with torch.inference_mode():
        return model.backbone(BATCH).float()


def count_quantized(model: LoadedModel) -> int:
    return sum(isinstance(layer, QuantizedLinear) for layer in model.backbone.modules())


@pytest.mark.parametrize("enable_lora", [False, True])
def test_the_report_has_the_measured_cosine(folder: Path, enable_lora: bool) -> None:
    model, report = load_and_report(folder, enable_lora=enable_lora)

    exact = compute(load(folder, None))
    assert cosine_similarity(compute(model), exact, dim=-1).min() > 0.99
    assert report.format == "int8" and count_quantized(model) > 0 and not report.num_unquantized
    assert report.cosine is not None and 0.995 <= report.cosine < 1
    assert str(report).startswith("int8 weights" if report.is_weight_only else "int8 products")
    assert f"torch kernels, cosine {report.cosine:.6f} with float32" in str(report)


def test_the_worst_layers_are_read_again_without_quantization(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quantized, plain = load_and_report(folder)
    assert plain.cosine is not None
    monkeypatch.setitem(format_search.MIN_COSINE, "int8", plain.cosine + 1e-7)

    model, report = load_and_report(folder)

    assert report.cosine is not None and report.cosine > plain.cosine
    assert 0 < report.num_unquantized == count_quantized(quantized) - count_quantized(model)
    assert re.search(f", {report.num_unquantized} layers? in float32, ", str(report))
    exact = compute(load(folder, None))
    assert cosine_similarity(compute(model), exact, dim=-1).min() > 0.99


@pytest.mark.parametrize("enable_lora", [False, True])
def test_a_model_that_never_comes_close_is_not_quantized(
    folder: Path, enable_lora: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(format_search.MIN_COSINE, "int8", 1.1)

    model, report = load_and_report(folder, enable_lora=enable_lora)

    assert report.format == "float32" and report.cosine is None and not count_quantized(model)
    assert report == describe_matmuls(model.backbone) or report.level == "torch"
    torch.testing.assert_close(compute(model), compute(load(folder, None)), atol=1e-5, rtol=0)
