"""Memory is given back after bursts of requests, and only then."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from cenote.api.memory_release import MIN_GROWTH_BYTES, NUM_LOW_CHECKS, BurstWatcher, release_memory


@pytest.mark.parametrize(
    ("counts", "num_ends"),
    [
        ([10_000, 9_000, 4_000, 500, 20, 20, 20, 20, 20], 1),
        ([1_000, *[0] * NUM_LOW_CHECKS, 1_000, *[0] * NUM_LOW_CHECKS], 2),
        ([1_000, 0, 0, 1_000, 0, 0, 1_000], 0),
        ([1_000, *[0] * 50], 1),
        ([1_000, 900, 800, 700, 600, 500, 400, 300, 200, 200, 200], 0),
        ([100, 0, 0, 0, 0, 0, 0], 0),
    ],
    ids=["a burst", "two bursts", "clients that are answered together", "then nothing", "a long queue", "few requests"],
)
def test_the_end_of_a_burst_is_found(counts: list[int], num_ends: int) -> None:
    watcher = BurstWatcher()

    assert sum(watcher.observe(count, 0) for count in counts) == num_ends


LITTLE, MUCH = 50 << 20, (50 << 20) + MIN_GROWTH_BYTES


@pytest.mark.parametrize(
    ("observations", "num_ends"),
    [
        ([(0, LITTLE), (3, MUCH), *[(0, MUCH)] * 50], 1),
        ([(0, LITTLE), (3, MUCH), *[(2, MUCH)] * 50], 0),
        ([(0, LITTLE), *[(0, MUCH)] * 50], 1),
        ([(0, LITTLE), (3, MUCH - 1), *[(0, MUCH - 1)] * 50], 0),
        ([(0, LITTLE), (3, MUCH), *[(0, MUCH)] * 9, (0, LITTLE), (3, MUCH), *[(0, MUCH)] * 9], 2),
    ],
    ids=["a large request", "one that takes long", "growth by refused calls", "less growth", "two large requests"],
)
def test_the_end_of_a_large_request_is_found(observations: list[tuple[int, int]], num_ends: int) -> None:
    watcher = BurstWatcher()

    assert sum(watcher.observe(*observation) for observation in observations) == num_ends


def test_memory_of_many_small_objects_is_given_back() -> None:
    def resident_bytes() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    objects = [bytes(600) for _ in range(100_000)]
    last = objects[-1]  # a block at the end of the heap, below which glibc keeps free pages
    full = resident_bytes()
    del objects

    release_memory()

    assert full - resident_bytes() > 30_000_000
    assert len(last) == 600


# glibc takes the size of a freed block, up to 32 MiB, as its new threshold, and keeps twice as much for each thread
AFTER_LARGE_BODIES = """
import sys, threading
from cenote.api import memory_release

def resident_mib():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20

if "limited" in sys.argv:
    memory_release.limit_kept_memory()
bytes(31 << 20)  # is freed at once
before = resident_mib()
thread = threading.Thread(target=lambda: [b"a" * 100_000 for _ in range(500)])
thread.start(), thread.join()
memory_release.release_memory()
print(resident_mib() - before)
"""


@pytest.mark.skipif(sys.platform != "linux" or resource.getpagesize() != 4096, reason="reads /proc/self/statm")
def test_large_bodies_leave_no_memory_to_threads() -> None:
    growth_mib = {
        name: int(subprocess.check_output([sys.executable, "-c", AFTER_LARGE_BODIES, name]))
        for name in ("limited", "as glibc does")
    }

    assert growth_mib["limited"] < 8
    assert growth_mib["as glibc does"] > 30  # otherwise there is nothing to limit here
