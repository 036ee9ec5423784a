"""How the suite runs: only `make test-all` runs the slow tests, long files first, coroutines in event loops."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests import checks

# What `make test` leaves to `make test-all`, and what the other tests show of the same promise. Single tests and rows
# of other files have the mark `slow`. A file in this table is not even imported by `make test`.
SLOW = {
    "tests/test_ray.py": "a cluster; tests/ray has what needs none",
    "tests/faults/test_chaos_minute.py": "every fault at random; one of each kind is in tests/serving",
    "tests/faults/test_engine_loss.py": "repeated kills; tests/serving/test_supervisor.py has one of each",
    "tests/faults/test_front_end_loss.py": "repeated kills; tests/serving/test_front_ends.py kills front-ends",
    "tests/faults/test_lanes.py": "timed; tests/engine/test_lanes.py has the rules",
    "tests/faults/test_overload.py": "timed; tests/serving/test_overload.py refuses requests",
    "tests/faults/test_shutdown_under_load.py": "repeated shutdowns; tests/serving/test_shutdown.py has one",
    "tests/faults/test_surroundings.py": "disks and clocks of the chaos driver",
    "tests/serving/test_fuzz.py": "minutes of requests; tests/api/test_mutations.py and test_bad_bodies.py are quick",
    "tests/fuzz/test_targets.py": "mutations for seconds each; the tests of each reader have its known damages",
    "tests/serving/test_startup_time.py": "timed, alone on the machine",
    "tests/serving/test_tensor_parallel.py": "servers of several ranks; tests/distributed/test_llm.py runs two",
    "tests/kernels/test_cross_compile.py": "the other architecture, in an emulator",
    "tests/kernels/test_x86_levels.py": "instruction sets in an emulator; test_cpu_levels.py runs those of this CPU",
    "tests/kernels/test_sanitizers.py": "compiles all C code; the same tests run without sanitizers",
    "tests/kernels/test_emulated_amx.py": "instructions of AMX, emulated",
    "tests/packaging/test_wheel.py": "builds the sdist and wheels",
    "tests/real/test_quality.py": "whole collections; tests/real compares single vectors and scores",
    "tests/clients/test_google_genai.py": "a client beyond the core of OpenAI, Cohere and LangChain",
    "tests/clients/test_guides.py": "a client beyond the core",
    "tests/clients/test_huggingface_hub.py": "a client beyond the core",
    "tests/clients/test_litellm.py": "a client beyond the core",
    "tests/clients/test_llama_index.py": "a client beyond the core",
    "tests/clients/test_ollama.py": "a client beyond the core",
    "tests/clients/test_published_examples.py": "a client beyond the core",
    "tests/clients/test_rerankers.py": "a client beyond the core",
    "tests/clients/test_voyageai.py": "a client beyond the core",
    "tests/clients/test_xinference_client.py": "a client beyond the core",
}

# A worker takes a whole file, so the longest ones start first: none of them is left alone at the end.
LONGEST_FIRST = (
    "tests/test_ray.py",
    "tests/docs/test_readers_environment.py",
    "tests/test_checks.py",
    "tests/serving/test_front_ends.py",
    "tests/faults",
    "tests/kernels/test_cross_compile.py",
    "tests/kernels/test_x86_levels.py",
    "tests/kernels/test_sanitizers.py",
    "tests/serving",
    "tests/ui",
    "tests/packaging",
    "tests/distributed",
    "tests/clients",
    "tests/deploy",
    "tests/real",
    "tests/test_examples",
    "tests/cli",
    "tests/bench",
)
CPU_TIMES = Path("/proc/stat")
# Authorities that this machine trusts, for tests that install packages; conftest.py hides them from all others.
CERTIFICATES = {name: os.environ[name] for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if name in os.environ}


def first_of(values: Iterable[Any], key: Callable[[Any], Any] = lambda value: None) -> list[Any]:
    """Return the rows of a parametrized test; `make test` runs only the first of each key."""
    keys: set[Any] = set()
    rows = []
    for value in values:
        rows.append(pytest.param(value, marks=pytest.mark.slow) if key(value) in keys else value)
        keys.add(key(value))
    return rows


class RunReport:
    """Sums up the seconds of tests per folder, and how much of the time the cores of the machine were idle."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.tests: Counter[str] = Counter()
        self.started = time.monotonic()
        self.cpu_times = read_cpu_times()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        folder = "/".join(report.nodeid.partition("::")[0].split("/")[:2])
        self.seconds[folder] += report.duration
        self.tests[folder] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self.seconds) < 2:
            return
        terminalreporter.write_line(f"{'seconds':>8} {'tests':>6}  folder")
        for folder, seconds in self.seconds.most_common():
            terminalreporter.write_line(f"{seconds:8.1f} {self.tests[folder]:6}  {folder}")
        summary = f"{sum(self.seconds.values()):8.1f} {sum(self.tests.values()):6}  in all"
        summary += f", in {time.monotonic() - self.started:.0f} s"
        cpu_times = read_cpu_times()
        if cpu_times is not None and self.cpu_times is not None:
            idle, total = (now - before for now, before in zip(cpu_times, self.cpu_times, strict=True))
            summary += f"; the {os.cpu_count()} cores were idle for {idle / max(total, 1):.0%} of it"
        terminalreporter.write_line(summary)


def read_cpu_times() -> tuple[int, int] | None:
    """Return the ticks that all cores were idle, and all their ticks; None if the system does not count them."""
    if not CPU_TIMES.exists():
        return None
    ticks = [int(field) for field in CPU_TIMES.read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def get_rank(nodeid: str) -> int:
    return next((rank for rank, prefix in enumerate(LONGEST_FIRST) if nodeid.startswith(prefix)), len(LONGEST_FIRST))


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # Collecting thousands of tests makes no garbage; pytest_collection_finish enables it again.
    config.pluginmanager.register(RunReport())


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    is_whole = config.args_source is not pytest.Config.ArgsSource.ARGS and not config.option.collectonly
    if is_whole and config.getoption("workers") > 1 and config.getoption("markexpr") != "slow":
        checks.start("types")


def pytest_unconfigure() -> None:
    checks.stop()


def pytest_collection_finish() -> None:
    """Leave modules and collected tests out of garbage collections, which would traverse them again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 50)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_slow = collection_path.is_relative_to(config.rootpath) and (
        collection_path.relative_to(config.rootpath).as_posix() in SLOW
    )
    return True if is_slow and config.getoption("markexpr") == "not slow" else None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.partition("::")[0] in SLOW:
            item.add_marker("slow")
    items.sort(key=lambda item: get_rank(item.nodeid))
