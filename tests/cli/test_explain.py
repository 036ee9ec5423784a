"""`cenote explain` measures, end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cenote.cli.main import main
from cenote.explain import hardware
from cenote.explain.results import TIME_PARTS
from cenote.kernels.cpu_features import CPUFeatures, cpu_name
from tests.tiny import tiny_bert


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(hardware.GEMM_SIZE, "cpu", 64)
    monkeypatch.setattr(hardware, "COPY_BYTES", 1024)


@pytest.mark.usefixtures("small_machine")
def test_a_model_is_measured_by_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_bert(tmp_path)

    assert main(["explain", str(tmp_path), "--length", "8", "--length", "500", "--seconds", "0.05", "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    # it reads no more than 66 tokens
    assert [each["name"] for each in told["readings"]] == ["8 tokens", "66 tokens", "mixed, mean 50"]
    for reading in told["readings"]:
        assert sum(reading["shares"].values()) == pytest.approx(1) and reading["shares"].keys() == TIME_PARTS.keys()
        assert 0 < reading["reached"]["low"] <= reading["reached"]["value"] <= reading["reached"]["high"]
        assert reading["light"]["value"] > 0 and reading["memory_light"] is None
    assert told["machine"]["gemm"].keys() == set(hardware.iter_linear_dtypes("cpu"))
    assert told["machine"]["processor"] == cpu_name()
    assert {each["name"]: each["value"] for each in told["settings"]}["tokens per batch"] == "at most 4096"
    assert told["rounds"] >= 1


@pytest.mark.usefixtures("small_machine")
def test_the_report_is_readable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_bert(tmp_path)

    assert main(["explain", str(tmp_path), "--length", "8", "--seconds", "0.05", "--dtype", "float32"]) == 0

    text = capsys.readouterr().out
    for word in ("Machine", "Settings", "Speed of light", "8 tokens", "Where the work goes", "What would help", "sdpa"):
        assert word in text


@pytest.mark.parametrize(
    ("flags", "offered"),
    [
        ({"avx2"}, ["float32"]),
        ({"asimd", "asimddp"}, ["float32"]),
        ({"avx512_vnni"}, ["float32", "int8"]),
        ({"amx_bf16", "amx_int8"}, ["float32", "bfloat16", "int8"]),
    ],
)
def test_only_number_types_that_the_cpu_has_units_for_are_measured(
    flags: set[str], offered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "cpu_features", lambda: CPUFeatures("x86", frozenset(flags)))

    assert list(hardware.iter_linear_dtypes("cpu")) == offered
    assert list(hardware.iter_linear_dtypes("cuda")) == ["float32", "float16", "bfloat16", "fp8"]


@pytest.mark.usefixtures("small_machine")
def test_what_the_cpu_has_no_units_for_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_bert(tmp_path)
    monkeypatch.setenv("CENOTE_MAX_CPU_ISA", "baseline")
    words = ["--dtype", "bfloat16", "--quantization", "int8"]

    assert main(["explain", str(tmp_path), "--length", "8", "--seconds", "0.05", "--json", *words]) == 0

    told = {each["name"]: (each["value"], each["reason"]) for each in json.loads(capsys.readouterr().out)["settings"]}
    assert told["number type"] == ("float32", "from dtype=bfloat16, which this CPU computes in float32")
    assert told["quantization"] == ("none", "from quantization=int8, for which this CPU has no fast kernel")
