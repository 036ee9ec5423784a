"""The memory of a burst of requests is given back to the system when they have been answered."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import resource
import sys
from pathlib import Path

from cenote.api.app_state import AppState

CHECK_INTERVAL_S = 0.2
MIN_PEAK_REQUESTS = 256  # in flight at once
MIN_GROWTH_BYTES = 16 << 20  # of the process, by which fewer but large requests are found
LOW_SHARE = 1 / 8  # of the peak: most of its requests have been answered
NUM_LOW_CHECKS = 3  # in a row: clients that send one request after the other may all be answered at once


# of glibc: blocks of this size are of the system, not of a heap, and so many free bytes end a heap of a thread
MMAP_THRESHOLD_BYTES, TRIM_THRESHOLD_BYTES = 1 << 20, 4 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


class BurstWatcher:
    """Finds the ends of bursts: of many requests, or of what the process has grown for.

    That may be a few large requests, or calls that were refused so soon that they were never seen in flight.
    """

    def __init__(self) -> None:
        self._peak = self._num_low = 0
        self._settled_bytes = sys.maxsize  # the least resident memory since the last burst

    def observe(self, num_in_flight: int, resident_bytes: int) -> bool:
        """Return whether a burst has ended; called at regular times."""
        self._peak = max(self._peak, num_in_flight)
        self._settled_bytes = min(self._settled_bytes, resident_bytes)
        is_burst = self._peak >= MIN_PEAK_REQUESTS or resident_bytes >= self._settled_bytes + MIN_GROWTH_BYTES
        is_low = is_burst and num_in_flight <= LOW_SHARE * self._peak
        self._num_low = self._num_low + 1 if is_low else 0
        if self._num_low < NUM_LOW_CHECKS:
            return False
        self._peak, self._num_low, self._settled_bytes = 0, 0, sys.maxsize
        return True


async def release_memory_after_bursts(app_state: AppState, *, has_engine: bool) -> None:
    """Run until cancelled. The memory of a process with an engine also grows by batches, which will use it again."""
    watcher = BurstWatcher()
    while True:
        await asyncio.sleep(CHECK_INTERVAL_S)
        if watcher.observe(app_state.num_in_flight, 0 if has_engine else _read_resident_bytes()):
            release_memory()


def _read_resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:  # no Linux: only many requests are found
        return 0


def release_memory() -> None:
    """Free Python's lists of unused objects, then the pages of the heap that hold none, which glibc keeps otherwise.

    Takes about 20 ms in a server with one front-end on an ARM Neoverse N1, in which nothing else is answered.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if trim is not None:
        trim(ctypes.c_size_t(0))


def limit_kept_memory() -> None:
    """Keep glibc from raising its thresholds with the size of what is freed.

    After one large body it would keep up to 64 MiB for each thread, at the end of its heap, which no trim releases.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        set_option(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
