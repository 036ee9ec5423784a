"""The benchmark of big models loads one from tensors that are made when they are read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.big_model import QWEN_72B, TINY, NoiseWeights, count_quantized_bytes, main


def test_the_default_shape_has_72_billion_parameters() -> None:
    assert sum(torch.Size(size).numel() for _, size in QWEN_72B.tensors()) == pytest.approx(71.6e9, rel=0.01)
    assert count_quantized_bytes(QWEN_72B) == pytest.approx(72.8e9, rel=0.01)


def test_a_small_model_is_loaded_and_measured_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--tiny", "--device", "cpu", "--layers", "2", "--lengths", "8", "16", "--batch-tokens", "32", "--json"]

    assert main(options) == 0

    result = json.loads(capsys.readouterr().out)
    assert result["quantization"] == "int8" and result["num_layers"] == 2
    assert result["load_seconds"] > 0
    assert set(result["tokens_per_second"]) == {"8", "16"} and min(result["tokens_per_second"].values()) > 0


def test_noise_differs_between_layers_and_norms_are_near_one() -> None:
    weights = NoiseWeights(TINY)

    opened = weights.open(Path("none"))

    first, second = (opened.get(f"model.layers.{layer}.mlp.up_proj.weight") for layer in (0, 1))
    assert first.shape == (512, 256) and not np.array_equal(first, second)
    assert float(opened.get("model.norm.weight").astype(np.float32).mean()) == pytest.approx(1, abs=0.01)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_loading_in_fp8_needs_the_memory_of_the_fp8_model(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--layers", "12", "--lengths", "128", "--batch-tokens", "1024", "--json"]

    assert main(options) == 0

    result = json.loads(capsys.readouterr().out)
    assert result["quantization"] == "fp8"
    # the last of the 12 layers is not quantized
    assert result["peak_over_quantized"] < 1.15
