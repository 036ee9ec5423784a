"""`cenote explain --http`, end to end with real server processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cenote.cli.main import EXIT_USAGE, main
from tests.tiny import tiny_bert_classifier

SHORT = ("--seconds", "0.5", "--connections", "4", "--length", "8")
STAGES = ["parse", "tokenize", "wire", "queue", "pack", "device", "deliver", "encode", "other"]


@pytest.mark.parametrize(
    ("flags", "roles"),
    [
        ((), ["supervisor", "front-end", "engine"]),
        pytest.param(("--in-process-engine", "--api-key", "secret"), ["server"], marks=pytest.mark.slow),
    ],
    ids=lambda value: value[0] if value else "supervised",
)
def test_the_default_model_is_measured_by_stage_and_process(
    default_folder: Path, flags: tuple[str, ...], roles: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(default_folder), "--http", "--json", *SHORT, *flags]) == 0

    report = json.loads(capsys.readouterr().out)
    assert report["requests"] > 4 and report["failed"] == 0 and report["requests_per_s"] > 0
    assert report["endpoint"] == "/v1/embeddings" and report["tokens_per_request"] == 8
    assert 0 < report["latency_ms"]["p50"] <= report["latency_ms"]["p99"]
    stages = {stage["name"]: stage for stage in report["stages"]}
    assert list(stages) == STAGES
    assert sum(stage["share"] for stage in stages.values()) == pytest.approx(1, abs=0.01)
    assert min(stages[name]["mean_ms"] for name in ("parse", "tokenize", "device", "deliver", "encode")) > 0
    assert (stages["wire"]["mean_ms"] > 0) == ("engine" in roles)
    assert sorted(process["role"] for process in report["processes"]) == sorted(roles)
    computing = report["processes"][[process["role"] for process in report["processes"]].index(roles[-1])]
    assert computing["cores"] == max(process["cores"] for process in report["processes"])
    assert 0.1 < report["device_busy"] <= 1 and report["inputs_per_batch"] >= 1
    assert report["advice"]


@pytest.mark.slow
def test_a_classifier_is_measured_on_the_pooling_route(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_bert_classifier(tmp_path)

    assert main(["explain", str(tmp_path), "--http", *SHORT, "--encoding-format", "float"]) == 0

    text = capsys.readouterr().out
    assert "/pooling, float: one text of" in text and "4 connections" in text
    for word in ("Stages of a request", "Processes", "supervisor", "front-end", "Advice", *STAGES):
        assert word in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--api-server-cont", "2"), "unknown option --api-server-cont, did you mean --api-server-count?"),
        (("--connections", "0"), "--connections"),
        (("--client-processes", "65"), "--client-processes 65 needs at least as many --connections"),
        (("--uds", "/tmp/a.sock"), "measures over plain HTTP on 127.0.0.1; leave out --uds"),
    ],
)
def test_invalid_options_are_reported_before_a_server_starts(
    flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "--http", *flags]) == EXIT_USAGE
    assert message in capsys.readouterr().err


def test_the_help_of_http_lists_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--http", "--help"]) == 0
    assert "--connections N" in capsys.readouterr().out
