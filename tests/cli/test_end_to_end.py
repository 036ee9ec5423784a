"""The real command, as a process of its own, with the default model."""

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


def start(*argv: object, text: str | None = None) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "cenote", *map(str, argv)]
    return subprocess.run(words, input=text, capture_output=True, text=True, env=ENVIRONMENT, timeout=120)


def start_and_stop(argv: Sequence[object], growing: Path, how: signal.Signals) -> tuple[int, str]:
    """Sends the signal as soon as the file has grown."""
    size = growing.stat().st_size if growing.exists() else 0
    words = [sys.executable, "-m", "cenote", *map(str, argv)]
    child = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    while child.poll() is None and (not growing.exists() or growing.stat().st_size <= size):
        time.sleep(0.005)
    child.send_signal(how)
    _, errors = child.communicate(timeout=120)
    return child.returncode, errors


def test_a_text_becomes_a_vector_of_length_1() -> None:
    done = start("embed", "a deep cave", "tiefe Höhle")

    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert [row["index"] for row in rows] == [0, 1]
    assert np.linalg.norm(rows[0]["embedding"]) == pytest.approx(1, abs=1e-3)
    assert rows[0]["num_tokens"] > 3


def test_documents_from_a_pipe_are_ranked() -> None:
    done = start("rerank", "a hole in the ground", text="the price of bread\na deep cave\n")

    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert [row["document"] for row in rows] == ["a deep cave", "the price of bread"]


def test_a_model_that_is_not_there_is_one_line_and_status_78(tmp_path: Path) -> None:
    done = start("embed", "hello", "--model", tmp_path / "none")

    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr.startswith("cenote: ") and done.stderr.count("\n") == 1


def test_ctrl_c_and_a_kill_cost_little_and_change_no_answer(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"{number} " + "water drips from the stone above " * 8 + "\n" for number in range(300)))
    out, whole = tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    command = ["embed", "--input", texts, "--output"]
    assert start(*command, whole).returncode == 0
    part = tmp_path / "out.jsonl.part"

    interrupted, told = start_and_stop([*command, out], part, signal.SIGINT)
    after_ctrl_c = part.read_bytes()
    killed, _ = start_and_stop([*command, out], part, signal.SIGKILL)
    after_kill = part.read_bytes()
    finished = start(*command, out)

    assert (interrupted, killed, finished.returncode) == (130, -signal.SIGKILL, 0)
    # fewer rows than the 4096 that may be handed to the engine at once
    num_kept = after_ctrl_c.count(b"\n")
    words = " ".join(map(str, [*command, out]))
    assert 0 < num_kept < 300
    assert told == (
        f"cenote: interrupted; rows kept: {num_kept} of 300, in {part}; the same command continues: cenote {words}\n"
    )
    assert after_kill.startswith(after_ctrl_c) and after_kill.count(b"\n") > num_kept
    assert finished.stderr.startswith(f"cenote: continuing {part} at row {after_kill.count(chr(10).encode())} of 300")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "texts.txt", "whole.jsonl"]
    expected, found = ([json.loads(line) for line in path.read_text().splitlines()] for path in (whole, out))
    assert [row["index"] for row in found] == list(range(300))
    # rows in other company may differ in their last digits
    assert np.allclose([row["embedding"] for row in found], [row["embedding"] for row in expected], atol=1e-5)
