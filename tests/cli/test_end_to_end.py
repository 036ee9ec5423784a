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


def test_ctrl_c_and_a_kill_cost_no_finished_slice_and_change_no_byte(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"{number} " + "water drips from the stone above " * 8 + "\n" for number in range(400)))
    out, whole = tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    command = ["embed", "--input", texts, "--batch-rows", 8, "--output"]
    assert start(*command, whole).returncode == 0
    part = tmp_path / "out.jsonl.part"

    interrupted, words = start_and_stop([*command, out], part, signal.SIGINT)
    after_ctrl_c = part.read_bytes()
    killed, _ = start_and_stop([*command, out], part, signal.SIGKILL)
    finished = start(*command, out)

    assert (interrupted, killed, finished.returncode) == (130, -signal.SIGKILL, 0)
    assert words == f"cenote: interrupted; the same command continues {part}\n"
    assert after_ctrl_c.count(b"\n") >= 8
    assert finished.stderr.startswith(f"cenote: continuing {part} at row ")
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "texts.txt", "whole.jsonl"]
