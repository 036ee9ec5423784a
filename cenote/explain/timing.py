"""Time calls on CPU and GPU, and summarize rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

import torch


@dataclass(frozen=True, slots=True)
class MeasuredValue:
    """Median, minimum and maximum of the rounds."""

    value: float
    low: float
    high: float

    @classmethod
    def from_samples(cls, samples: Iterable[float]) -> MeasuredValue:
        seen = list(samples)
        return cls(median(seen), min(seen), max(seen))

    @property
    def spread(self) -> float:
        """Return (maximum - minimum) / median."""
        return (self.high - self.low) / self.value if self.value else 0.0


def time_call(work: Callable[[], object], device: torch.device, *, at_least: float = 0.0) -> float:
    """Return the seconds per call, repeated for at least that many seconds."""
    repeats, total = 0, 0.0
    while repeats == 0 or total < at_least:
        total += _time_once(work, device)
        repeats += 1
    return total / repeats


def _time_once(work: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # exclude work that is still running
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
