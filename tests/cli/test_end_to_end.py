"""The real command, in its own process, with the default model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def run_cenote(*argv: object, text: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cenote", *map(str, argv)]
    return subprocess.run(command, input=text, capture_output=True, text=True, env=ENVIRONMENT, timeout=120)


def run_and_signal(argv: Sequence[object], output: Path, signal_number: signal.Signals) -> tuple[int, str]:
    """Send the signal as soon as the output file has grown; return the exit status and standard error."""
    size = output.stat().st_size if output.exists() else 0
    command = [sys.executable, "-m", "cenote", *map(str, argv)]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    while child.poll() is None and (not output.exists() or output.stat().st_size <= size):
        time.sleep(0.005)
    child.send_signal(signal_number)
    _, errors = child.communicate(timeout=120)
    return child.returncode, errors


def test_embeddings_have_length_1() -> None:
    result = run_cenote("embed", "a deep cave", "tiefe Höhle")

    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert (result.returncode, result.stderr) == (0, "")
    assert [row["index"] for row in rows] == [0, 1]
    assert np.linalg.norm(rows[0]["embedding"]) == pytest.approx(1, abs=1e-3)
    assert rows[0]["num_tokens"] > 3


@pytest.mark.slow
def test_documents_from_a_pipe_are_ranked() -> None:
    result = run_cenote("rerank", "a hole in the ground", text="the price of bread\na deep cave\n")

    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.returncode == 0, result.stderr
    assert [row["document"] for row in rows] == ["a deep cave", "the price of bread"]


@pytest.mark.slow
def test_a_missing_model_is_one_line_and_status_78(tmp_path: Path) -> None:
    result = run_cenote("embed", "hello", "--model", tmp_path / "none")

    assert (result.returncode, result.stdout) == (78, "")
    assert result.stderr.startswith("cenote: ") and result.stderr.count("\n") == 1


@pytest.mark.slow
def test_ctrl_c_and_a_kill_lose_few_rows_and_do_not_change_results(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    # many characters make many slices; a word as long as the last one is a single token
    texts.write_text("".join(f"{number} drops of water {'x' * 250}\n" for number in range(300)))
    out, uninterrupted = tmp_path / "out.jsonl", tmp_path / "uninterrupted.jsonl"
    command = ["embed", "--input", texts, "--output"]
    assert run_cenote(*command, uninterrupted).returncode == 0
    partial_file = tmp_path / "out.jsonl.part"

    interrupted, message = run_and_signal([*command, out], partial_file, signal.SIGINT)
    after_ctrl_c = partial_file.read_bytes()
    killed, _ = run_and_signal([*command, out], partial_file, signal.SIGKILL)
    after_kill = partial_file.read_bytes()
    finished = run_cenote(*command, out)

    assert (interrupted, killed, finished.returncode) == (130, -signal.SIGKILL, 0)
    # fewer rows than the maximum of 4096 per slice
    num_kept = after_ctrl_c.count(b"\n")
    command_line = " ".join(map(str, [*command, out]))
    assert 0 < num_kept < 300
    assert message == (
        f"cenote: interrupted; rows kept: {num_kept} of 300, in {partial_file}; "
        f"run the same command to continue: cenote {command_line}\n"
    )
    assert after_kill.startswith(after_ctrl_c) and after_kill.count(b"\n") > num_kept
    assert finished.stderr.startswith(
        f"cenote: continuing {partial_file} at row {after_kill.count(chr(10).encode())} of 300"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "texts.txt", "uninterrupted.jsonl"]
    expected, rows = ([json.loads(line) for line in path.read_text().splitlines()] for path in (uninterrupted, out))
    assert [row["index"] for row in rows] == list(range(300))
    # rows of differently composed batches may differ in their last digits
    assert np.allclose([row["embedding"] for row in rows], [row["embedding"] for row in expected], atol=1e-5)
