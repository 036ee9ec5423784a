"""Seconds of a piece of work, wherever it runs, and what several rounds of it say together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

import torch


@dataclass(frozen=True, slots=True)
class MeasuredValue:
    """The median of the rounds, and the least and the most that was seen."""

    value: float
    low: float
    high: float

    @classmethod
    def from_samples(cls, samples: Iterable[float]) -> MeasuredValue:
        seen = list(samples)
        return cls(median(seen), min(seen), max(seen))

    @property
    def spread(self) -> float:
        """How far apart the extremes are, as a share of the median."""
        return (self.high - self.low) / self.value if self.value else 0.0


def time_call(work: Callable[[], object], device: torch.device, *, at_least: float = 0.0) -> float:
    """How long it takes, repeated until that many seconds have gone by."""
    repeats, total = 0, 0.0
    while repeats == 0 or total < at_least:
        total += _time_once(work, device)
        repeats += 1
    return total / repeats


def _time_once(work: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # what is still running belongs to somebody else
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
