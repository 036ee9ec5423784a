"""What attackers reach first refuses mutated inputs with errors of the package; `make fuzz` runs longer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cenote.errors import BadRequest
from cenote.inputs.media import image_header
from tests.fuzz.coverage_fuzzer import Target, fuzz
from tests.fuzz.targets import make_targets

NAMES = (
    *("connection", "image-header", "safetensors", "peft", "peft-config", "sentencepiece"),
    *("tokenizer", "tokenizer-config"),
)
SECONDS = float(os.environ.get("FUZZ_SECONDS", 3))


def test_every_target_is_run(tmp_path: Path) -> None:
    assert tuple(make_targets(tmp_path)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_mutated_inputs_are_read_or_refused(name: str, tmp_path: Path) -> None:
    report = fuzz(make_targets(tmp_path)[name], SECONDS)

    assert report.failures == []
    assert report.num_edges > 50


def test_coverage_leads_to_a_defect_behind_several_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_header, "MAX_CHUNKS", None)  # A PNG fails at its first chunk, with a TypeError.
    start = b"\x89PNG\r\n\x1a\0\0\0\0\x0dIHDR"  # a byte differs from the start of a PNG
    target = Target("png", [start], lambda data: image_header.read_header(data, 1), [b"\n"])

    report = fuzz(target, seconds=20, max_failures=1)

    ((data, error),) = report.failures
    assert error.startswith("TypeError") and data.startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize("error", [BadRequest("refused"), None])
def test_a_refusal_is_no_failure(error: Exception | None) -> None:
    def run(data: bytes) -> None:
        if error is not None:
            raise error

    assert fuzz(Target("refusal", [b"a"], run), seconds=0.01).failures == []
