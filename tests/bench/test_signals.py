"""Benchmarks terminate their child processes on SIGTERM and SIGINT; runs real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

STUB_ENGINE = Path(__file__).parent / "compare" / "stub_engine.py"
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")

COMPARE = """
import sys
from cenote.bench.compare import engines
from cenote.cli.main import main
settings = {"has_child": True, "delay": 600.0}
engines.ENGINES = {name: engines.PeerEngine(name, name, sys.argv[1], None, settings) for name in ("cenote", "peer")}
sys.exit(main(["bench", "compare", "--workloads", "short", "--texts", "20", "--model", sys.argv[2]]))
"""

# a server that is never ready, with a child
SERVE = """
import sys
from cenote.bench import serve
from cenote.cli.main import main
server = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
serve.make_serve_command = lambda port, **more: [sys.executable, "-c", server]
sys.exit(main(["bench", "serve", "--spawn", "--num-requests", "1"]))
"""

EXPORT = """
import sys
from cenote.bench.process_group import terminate_groups_on_sigterm, run_in_group
child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
with terminate_groups_on_sigterm():
    run_in_group([sys.executable, "-c", child], stdout=2, stderr=2)
"""


def parents() -> dict[int, int]:
    """Return the parent pid of every live process."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state not in "ZX":
            found[int(stat.parent.name)] = int(parent)
    return found


def descendants(pid: int) -> set[int]:
    known, found = parents(), {pid}
    while more := {child for child, parent in known.items() if parent in found} - found:
        found |= more
    return found - {pid}


@contextmanager
def running(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_descendants(process: subprocess.Popen[str], count: int) -> set[int]:
    until = time.monotonic() + 60
    while len(found := descendants(process.pid)) < count and time.monotonic() < until:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    assert len(found) >= count
    return found


def all_gone(pids: set[int]) -> bool:
    until = time.monotonic() + 10
    while (left := pids & parents().keys()) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in left:  # do not leave them running after a failure
        os.kill(pid, signal.SIGKILL)
    return not left


@needs_proc
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, -signal.SIGTERM), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_compare_terminates_its_peers_and_their_children_on_a_signal(
    number: signal.Signals, status: int, default_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").symlink_to(default_folder / "tokenizer.json")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "max_position_embeddings": 100}))

    with running(COMPARE, str(STUB_ENGINE), str(tmp_path)) as bench:
        workers = wait_for_descendants(bench, 4)  # two engines, each with a child
        bench.send_signal(number)
        bench.wait(30)

    assert bench.returncode == status
    assert all_gone(workers)


@needs_proc
@pytest.mark.parametrize("code", [SERVE, EXPORT], ids=["server", "export"])
def test_sigterm_terminates_spawned_servers_and_exports(code: str) -> None:
    with running(code) as bench:
        started = wait_for_descendants(bench, 2)
        bench.send_signal(signal.SIGTERM)
        bench.wait(30)

    assert bench.returncode == -signal.SIGTERM
    assert all_gone(started)


@needs_proc
def test_a_second_sigterm_still_kills_a_process_that_ignores_sigterm() -> None:
    ignoring = EXPORT.replace("import subprocess, sys;", "import signal, subprocess, sys; signal.signal(15, 1);")
    with running(ignoring) as bench:
        started = wait_for_descendants(bench, 2)
        bench.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        bench.send_signal(signal.SIGTERM)
        bench.wait(30)

    assert all_gone(started)
