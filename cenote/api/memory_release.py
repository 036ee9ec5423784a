"""The memory of a burst of requests is given back to the system when they have been answered."""

from __future__ import annotations

import asyncio
import ctypes
import gc

from cenote.api.app_state import AppState

CHECK_INTERVAL_S = 0.2
MIN_PEAK_REQUESTS = 256  # in flight at once; fewer take little memory
LOW_SHARE = 1 / 8  # of the peak: most of its requests have been answered
NUM_LOW_CHECKS = 3  # in a row: clients that send one request after the other may all be answered at once


class PeakWatcher:
    """Finds the ends of bursts of requests."""

    def __init__(self) -> None:
        self._peak = self._num_low = 0

    def observe(self, num_in_flight: int) -> bool:
        """Return whether a burst has ended; called at regular times."""
        self._peak = max(self._peak, num_in_flight)
        is_low = self._peak >= MIN_PEAK_REQUESTS and num_in_flight <= LOW_SHARE * self._peak
        self._num_low = self._num_low + 1 if is_low else 0
        if self._num_low < NUM_LOW_CHECKS:
            return False
        self._peak = self._num_low = 0
        return True


async def release_memory_after_bursts(app_state: AppState) -> None:
    """Run until cancelled."""
    watcher = PeakWatcher()
    while True:
        await asyncio.sleep(CHECK_INTERVAL_S)
        if watcher.observe(app_state.num_in_flight):
            release_memory()


def release_memory() -> None:
    """Free Python's lists of unused objects, then the pages of the heap that hold none, which glibc keeps otherwise.

    Takes about 20 ms in a server with one front-end on an ARM Neoverse N1, in which nothing else is answered.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if trim is not None:
        trim(ctypes.c_size_t(0))
