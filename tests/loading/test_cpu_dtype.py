"""Dtypes that a CPU has no units for run in float32, with the same speed and results, and one warning."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from cenote import LLM
from cenote.kernels.cpu_features import CPU_LEVEL
from tests.tiny import tiny_bert

TEXTS = [[7, 8, 9], [10, 11], list(range(5, 60))]


@pytest.fixture
def plain_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a CPU without 16-bit and int8 units."""
    monkeypatch.setenv(CPU_LEVEL, "baseline")


def embedded(folder: Path, **options: Any) -> list[list[float]]:
    with LLM(str(folder), device="cpu", pooler_config={"pooling_type": "CLS"}, **options) as llm:
        assert llm.model_config.dtype is torch.float32
        parameters = [weight for weight in llm.engine.model.backbone.parameters() if weight.is_floating_point()]
        assert {weight.dtype for weight in parameters} == {torch.float32}
        return [item.outputs.embedding for item in llm.embed(TEXTS, use_tqdm=False)]


@pytest.mark.usefixtures("plain_cpu")
@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"dtype": "bfloat16"}, "dtype=bfloat16: this CPU has no fast bfloat16 arithmetic; using float32"),
        ({"dtype": "float16"}, "dtype=float16: this CPU has no fast float16 arithmetic; using float32"),
        ({"dtype": "half"}, "dtype=float16: this CPU has no fast float16 arithmetic; using float32"),
        (
            {"dtype": "float32", "hf_overrides": {"head_dtype": "bfloat16"}},
            "head_dtype=bfloat16: this CPU has no fast bfloat16 arithmetic; using float32",
        ),
    ],
)
def test_results_are_those_of_float32_and_one_log_line_says_why(
    options: dict[str, Any], line: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_bert(tmp_path)
    expected = embedded(tmp_path, dtype="float32")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = embedded(tmp_path, **options)

    assert found == expected
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == [line]


@pytest.mark.usefixtures("plain_cpu")
def test_the_dtype_is_float32_by_default_without_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny_bert(tmp_path)

    embedded(tmp_path)

    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.usefixtures("plain_cpu")
def test_int8_weights_are_dequantized_without_int8_units_and_one_log_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_bert(tmp_path)
    expected = embedded(tmp_path, dtype="float32")

    found = embedded(tmp_path, quantization="int8")

    assert found != expected
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=0.02, atol=0.02)
    (told,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert told.startswith("quantization=int8: there is no fast int8 kernel for this CPU and dtype; weights are")
