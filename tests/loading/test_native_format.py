"""Native models in int8 and float16 are compared with float32 at load, as those of torch are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cenote.config.engine import EngineConfig
from cenote.kernels.cpu import format_search
from cenote.kernels.cpu.library import supports_format, unquantized_format
from cenote.loading.load import load_model
from cenote.loading.loaded_model import LoadedModel
from tests.kernels.levels import LEVELS, needs_level, use_level
from tests.models.parity import run
from tests.tiny import save_tiny

pytestmark = needs_level
FAMILIES = ["BertModel", "AlbertModel", "ModernBertModel", "LlamaModel"]


@pytest.fixture(autouse=True)
def highest_level(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CPUs with AMX use all products of a level only if the instruction sets are limited."""
    with use_level(LEVELS[-1], monkeypatch):
        yield


@pytest.fixture(autouse=True)
def has_int8(highest_level: None) -> None:
    if not supports_format("int8"):
        pytest.skip("this CPU has no int8 products")


def load(folder: Path, runtime: str, quantization: str | None = "int8") -> LoadedModel:
    options = {"device": "cpu", "dtype": "float32", "runtime": runtime, "quantization": quantization}
    return load_model(EngineConfig.from_kwargs(str(folder), **options))


# not ALBERT: the native runtime scales a shared layer by the inputs of all its uses, torch by those of one
@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "AlbertModel"])
def test_an_int8_model_has_the_states_of_the_torch_runtime(family: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, family)

    native, expected = load(tmp_path, "native"), load(tmp_path, "torch")

    torch.testing.assert_close(run(native.backbone), run(expected.backbone), atol=1e-5, rtol=0)
    assert native.products is not None and expected.products is not None
    assert native.products.cosine == pytest.approx(expected.products.cosine, abs=1e-5)
    assert replace(native.products, cosine=None) == replace(expected.products, cosine=None)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_report_has_the_measured_cosine(family: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, family)

    report = load(tmp_path, "native").products

    assert report is not None and report.format == "int8"
    assert report.cosine is not None and format_search.MIN_COSINE["int8"] <= report.cosine < 1


def test_the_worst_layers_are_not_quantized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny(tmp_path, "BertModel", num_hidden_layers=4)
    cosine = load(tmp_path, "native").products.cosine  # type: ignore[union-attr]
    monkeypatch.setitem(format_search.MIN_COSINE, "int8", np.nextafter(cosine, 1))

    model = load(tmp_path, "native")

    formats = [linear.format for linear in model.backbone.linears.values()]
    assert model.products is not None and model.products.num_unquantized == formats.count(unquantized_format()) > 0
    assert "int8" in formats


def test_a_model_that_never_comes_close_is_computed_in_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny(tmp_path, "BertModel")
    for name in ("int8", "float16"):
        monkeypatch.setitem(format_search.MIN_COSINE, name, 1.1)

    model = load(tmp_path, "native")

    assert {linear.format for linear in model.backbone.linears.values()} == {"float32"}
    exact = load(tmp_path, "native", None)
    torch.testing.assert_close(run(model.backbone), run(exact.backbone), atol=1e-4, rtol=0)
