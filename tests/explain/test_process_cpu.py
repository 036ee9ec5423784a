"""CPU times of processes, from /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from cenote.explain.process_cpu import CpuTimes, compute_usage, read_cpu_times

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SPIN = "import threading, time\ndef spin():\n  while True: pass\nthreading.Thread(target=spin, daemon=True).start()\n"


def test_the_cpu_of_a_child_is_counted_apart_from_its_main_thread() -> None:
    with subprocess.Popen([sys.executable, "-c", SPIN + "time.sleep(60)"]) as child:
        try:
            time.sleep(0.3)
            before, started_at = read_cpu_times(os.getpid()), time.perf_counter()
            time.sleep(0.5)
            after, seconds = read_cpu_times(os.getpid()), time.perf_counter() - started_at
        finally:
            child.kill()

    usage = {process.pid: process for process in compute_usage(before, after, seconds, 10)}
    spinning, own = usage[child.pid], usage[os.getpid()]
    assert spinning.role == "other"
    assert own.cores < spinning.cores <= 1.1 and spinning.cores > 0.1
    assert spinning.main_thread_cores < 0.05
    assert spinning.us_per_request == pytest.approx(1e6 * spinning.cores * seconds / 10)


def test_processes_that_came_or_went_are_left_out() -> None:
    before = {1: CpuTimes("engine", 1.0, 0.5), 2: CpuTimes("other", 1.0, 1.0)}
    after = {1: CpuTimes("engine", 3.0, 1.0), 3: CpuTimes("engine", 1.0, 1.0)}

    (usage,) = compute_usage(before, after, 2.0, 1000)
    assert (usage.pid, usage.cores, usage.main_thread_cores, usage.us_per_request) == (1, 1.0, 0.25, 2000.0)


def test_a_process_that_does_not_exist_has_no_times() -> None:
    assert read_cpu_times(2**22 + 1) == {}
