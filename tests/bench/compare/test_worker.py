"""Worker processes: protocol, pausing between calls, and termination."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cenote.bench.compare.worker import WorkerFailed, WorkerProcess

STUB = Path(__file__).with_name("stub_engine.py")
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    worker = WorkerProcess.from_script("stub", Path(sys.executable), str(STUB))
    yield worker
    worker.terminate()


def load(worker: WorkerProcess, **settings: Any) -> dict[str, Any]:
    return worker.load("a-folder", "embed", settings)


def state(pid: int) -> str | None:
    """Return the state letter of a process (T is stopped), or None if it has exited or is a zombie."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if letter in "ZX" else letter


def wait_until(condition: Any) -> bool:
    until = time.monotonic() + 10
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return bool(condition())


def test_a_worker_loads_stores_inputs_and_measures_runs(worker: WorkerProcess) -> None:
    info = load(worker, delay=0.02)
    worker.prepare("short", ["one", "seventeen", "three"])

    (total,) = worker.run("short", "embed", is_single_query=False)
    single = worker.run("short", "embed", is_single_query=True)

    assert info["settings"]["threads"] == 3 and info["settings"]["model"] == "a-folder"
    assert "python" in info["versions"]
    assert 0.02 <= total < 5
    assert len(single) == 3 and min(single) >= 0.02


def test_outputs_come_back_unchanged(worker: WorkerProcess) -> None:
    load(worker)
    worker.prepare("short", ["one", "seventeen", "three"])
    worker.prepare("rerank", {"query": "q", "documents": ["a", "bb", "ccc"]})

    assert [row.tolist() for row in worker.outputs("short", "embed", 2)] == [[3, 2, 1], [9, 5, 1]]
    assert [row[0] for row in worker.outputs("rerank", "score", 2)] == [1, 2]


def test_an_error_of_a_worker_is_reported_and_does_not_end_it(worker: WorkerProcess) -> None:
    load(worker, refuses="score")
    worker.prepare("short", ["one"])

    with pytest.raises(WorkerFailed, match="stub: ValueError: does not score"):
        worker.run("short", "score", is_single_query=False)

    assert worker.run("short", "embed", is_single_query=False)


def test_a_model_that_does_not_load_is_reported(worker: WorkerProcess) -> None:
    with pytest.raises(WorkerFailed, match="cannot read a-folder"):
        load(worker, fails=True)


def test_a_worker_that_dies_shows_the_end_of_its_log(worker: WorkerProcess) -> None:
    load(worker, dies=True)
    worker.prepare("short", ["one"])

    with pytest.raises(WorkerFailed, match="stub exited; last log lines: .*out of memory"):
        worker.run("short", "embed", is_single_query=False)


@needs_proc
def test_between_requests_a_worker_and_its_children_are_stopped(worker: WorkerProcess) -> None:
    settings = load(worker, has_child=True)["settings"]
    pids = [settings["pid"], settings["child"]]

    assert wait_until(lambda: [state(pid) for pid in pids] == ["T", "T"])
    spent = Path(f"/proc/{pids[1]}/stat").read_text().split()[13:15]
    time.sleep(0.1)  # a running loop would use CPU time
    assert Path(f"/proc/{pids[1]}/stat").read_text().split()[13:15] == spent

    worker.group.resume()
    assert wait_until(lambda: state(pids[1]) == "R")


@needs_proc
def test_terminating_a_worker_kills_its_children() -> None:
    worker = WorkerProcess.from_script("stub", Path(sys.executable), str(STUB))
    settings = load(worker, has_child=True)["settings"]

    worker.terminate()

    assert wait_until(lambda: state(settings["child"]) is None) and state(settings["pid"]) is None


@needs_proc
def test_no_stopped_worker_remains_after_the_benchmark_dies() -> None:
    code = """
import os, sys
from pathlib import Path
from cenote.bench.compare.worker import WorkerProcess
worker = WorkerProcess.from_script("stub", Path(sys.executable), sys.argv[1])
settings = worker.load("a-folder", "embed", {"has_child": True})["settings"]
print(settings["pid"], settings["child"], flush=True)
os._exit(1)
"""
    done = subprocess.run([sys.executable, "-c", code, str(STUB)], capture_output=True, text=True, timeout=60)

    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2 and wait_until(lambda: [state(pid) for pid in pids] == [None, None])
