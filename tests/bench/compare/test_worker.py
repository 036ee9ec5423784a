"""A worker answers line by line, stands still between questions, and never outlives the bench."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cenote.bench.compare.worker import Worker, WorkerFailed

STUB = Path(__file__).with_name("stub_engine.py")
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="states of processes are read from /proc")


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker.of_script("stub", Path(sys.executable), str(STUB))
    yield worker
    worker.end()


def load(worker: Worker, **settings: Any) -> dict[str, Any]:
    return worker.load("a-folder", "embed", settings)


def state(pid: int) -> str | None:
    """T is stopped; None is gone, and so is what nobody has buried yet."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if letter in "ZX" else letter


def wait_until(happened: Any) -> bool:
    until = time.monotonic() + 10
    while not happened() and time.monotonic() < until:
        time.sleep(0.01)
    return bool(happened())


def test_a_worker_loads_keeps_texts_and_times_itself(worker: Worker) -> None:
    about = load(worker, delay=0.02)
    worker.prepare("short", ["one", "seventeen", "three"])

    (whole,) = worker.run("short", "embed", singly=False)
    each = worker.run("short", "embed", singly=True)

    assert about["settings"]["threads"] == 3 and about["settings"]["model"] == "a-folder"
    assert "python" in about["versions"]
    assert 0.02 <= whole < 5
    assert len(each) == 3 and min(each) >= 0.02


def test_answers_come_back_as_the_numbers_they_were(worker: Worker) -> None:
    load(worker)
    worker.prepare("short", ["one", "seventeen", "three"])
    worker.prepare("rerank", {"query": "q", "documents": ["a", "bb", "ccc"]})

    assert [row.tolist() for row in worker.answers("short", "embed", 2)] == [[3, 2, 1], [9, 5, 1]]
    assert [row[0] for row in worker.answers("rerank", "score", 2)] == [1, 2]


def test_what_a_worker_cannot_do_is_told_and_does_not_end_it(worker: Worker) -> None:
    load(worker, refuses="score")
    worker.prepare("short", ["one"])

    with pytest.raises(WorkerFailed, match="stub: ValueError: does not score"):
        worker.run("short", "score", singly=False)

    assert worker.run("short", "embed", singly=False)


def test_a_model_that_does_not_load_is_told(worker: Worker) -> None:
    with pytest.raises(WorkerFailed, match="cannot read a-folder"):
        load(worker, fails=True)


def test_a_worker_that_dies_shows_its_last_words(worker: Worker) -> None:
    load(worker, dies=True)
    worker.prepare("short", ["one"])

    with pytest.raises(WorkerFailed, match="stub ended; it said: .*out of memory"):
        worker.run("short", "embed", singly=False)


@needs_proc
def test_between_questions_a_worker_and_its_children_stand_still(worker: Worker) -> None:
    settings = load(worker, has_child=True)["settings"]
    pids = [settings["pid"], settings["child"]]

    assert wait_until(lambda: [state(pid) for pid in pids] == ["T", "T"])
    spent = Path(f"/proc/{pids[1]}/stat").read_text().split()[13:15]
    time.sleep(0.1)  # a loop that runs would have used some of it
    assert Path(f"/proc/{pids[1]}/stat").read_text().split()[13:15] == spent

    worker.group.resume()
    assert wait_until(lambda: state(pids[1]) == "R")


@needs_proc
def test_an_ended_worker_takes_its_children_along() -> None:
    worker = Worker.of_script("stub", Path(sys.executable), str(STUB))
    settings = load(worker, has_child=True)["settings"]

    worker.end()

    assert wait_until(lambda: state(settings["child"]) is None) and state(settings["pid"]) is None


@needs_proc
def test_a_bench_that_is_killed_leaves_no_stopped_worker_behind() -> None:
    code = """
import os, sys
from pathlib import Path
from cenote.bench.compare.worker import Worker
worker = Worker.of_script("stub", Path(sys.executable), sys.argv[1])
settings = worker.load("a-folder", "embed", {"has_child": True})["settings"]
print(settings["pid"], settings["child"], flush=True)
os._exit(1)
"""
    done = subprocess.run([sys.executable, "-c", code, str(STUB)], capture_output=True, text=True, timeout=60)

    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2 and wait_until(lambda: [state(pid) for pid in pids] == [None, None])
