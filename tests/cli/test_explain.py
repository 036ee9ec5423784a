"""`cenote explain`, end to end."""

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

    report = json.loads(capsys.readouterr().out)
    # the maximum length of the model is 66 tokens
    assert [reading["name"] for reading in report["readings"]] == ["8 tokens", "66 tokens", "mixed, mean 50"]
    for reading in report["readings"]:
        assert sum(reading["shares"].values()) == pytest.approx(1) and reading["shares"].keys() == TIME_PARTS.keys()
        assert 0 < reading["reached"]["low"] <= reading["reached"]["value"] <= reading["reached"]["high"]
        assert reading["light"]["value"] > 0 and reading["memory_light"] is None
    assert report["single_parts"].keys() == {"model", "tokenizer", "engine"}
    assert all(0 < part["value"] < report["single"]["high"] for part in report["single_parts"].values())
    assert report["machine"]["gemm"].keys() == set(hardware.iter_linear_dtypes("cpu"))
    assert report["machine"]["processor"] == cpu_name()
    assert {setting["name"]: setting["value"] for setting in report["settings"]}["tokens per batch"] == "at most 4096"
    assert report["rounds"] >= 1


@pytest.mark.usefixtures("small_machine")
def test_the_text_report_has_all_sections(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_bert(tmp_path)

    assert main(["explain", str(tmp_path), "--length", "8", "--seconds", "0.05", "--dtype", "float32"]) == 0

    text = capsys.readouterr().out
    for word in ("Machine", "Settings", "Speed of light", "8 tokens", "Share of time", "Advice", "attention"):
        assert word in text


@pytest.mark.parametrize(
    ("flags", "dtypes"),
    [
        ({"avx2"}, ["float32"]),
        ({"asimd"}, ["float32"]),
        ({"asimd", "asimdhp", "asimddp"}, ["float32", "float16", "int8"]),
        ({"avx512_vnni"}, ["float32", "int8"]),
        ({"amx_bf16", "amx_int8"}, ["float32", "bfloat16", "int8"]),
    ],
)
def test_only_dtypes_with_hardware_support_are_measured(
    flags: set[str], dtypes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "cpu_features", lambda: CPUFeatures("x86", frozenset(flags)))
    monkeypatch.setattr(hardware, "supports_format", lambda format: "asimdhp" in flags)

    assert list(hardware.iter_linear_dtypes("cpu")) == dtypes
    assert list(hardware.iter_linear_dtypes("cuda")) == ["float32", "float16", "bfloat16", "fp8"]


@pytest.mark.usefixtures("small_machine")
def test_dtypes_without_hardware_support_are_reported_with_the_replacement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_bert(tmp_path)
    monkeypatch.setenv("CENOTE_CPU_LEVEL", "baseline")
    options = ["--dtype", "bfloat16", "--quantization", "int8", "--deterministic"]

    assert main(["explain", str(tmp_path), "--length", "8", "--seconds", "0.05", "--json", *options]) == 0

    rows = json.loads(capsys.readouterr().out)["settings"]
    settings = {row["name"]: (row["value"], row["reason"]) for row in rows}
    assert settings["dtype"] == ("float32", "from dtype=bfloat16, run in float32 on this CPU")
    assert settings["quantization"] == (
        "int8",
        "from quantization=int8, weights only: this CPU has no fast int8 kernel",
    )
    assert settings["deterministic"] == ("each sequence runs alone", "--deterministic, layers of this model")
