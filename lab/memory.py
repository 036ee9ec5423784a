"""Peak memory of a section of code, on the host and on the device."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch

STATUS_FILE, CLEAR_REFS_FILE = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # written to clear_refs, resets VmHWM (see the kernel documentation)


class PeakMemory:
    """Measures peak memory from its creation on."""

    def __init__(self, device: torch.device) -> None:
        self.device = device if device.type == "cuda" else None
        if self.device is not None:
            torch.cuda.reset_peak_memory_stats(self.device)
        with suppress(
            OSError
        ):  # without write access the peak includes earlier work: it may be too high, never too low
            CLEAR_REFS_FILE.write_text(RESET_PEAK)
        self.baseline_mib = read_resident_mib() or read_peak_mib()

    def measure_mib(self) -> tuple[float, float | None]:
        """Return the host peak above the start and the total device peak (None without a GPU), in MiB."""
        on_device = None if self.device is None else torch.cuda.max_memory_allocated(self.device) / 2**20
        return max(0.0, read_peak_mib() - self.baseline_mib), on_device


def read_resident_mib() -> float | None:
    return _read_status_field("VmRSS")


def read_peak_mib() -> float:
    peak = _read_status_field("VmHWM")
    if peak is not None:
        return peak
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def _read_status_field(name: str) -> float | None:
    try:
        lines = STATUS_FILE.read_text().splitlines()
    except OSError:
        return None
    line = next((line for line in lines if line.startswith(f"{name}:")), None)
    return None if line is None else int(line.split()[1]) / 2**10
