"""Requests of a simulated load: arrival times and lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cenote.bench.load import LoadPattern


@dataclass(frozen=True, slots=True)
class Request:
    """One text that arrives at a time; `content` is equal for equal texts."""

    arrival_s: float
    tokens: int
    content: int


def make_requests(
    load: LoadPattern, *, mean_tokens: float, sigma: float, max_tokens: int = 8192, num_contents: int | None = None
) -> list[Request]:
    """Make requests of log-normal lengths; with `num_contents` texts repeat, the first ones more often (Zipf)."""
    random = np.random.default_rng([load.seed, 1])
    times = list(load.arrival_times())
    count = len(times) if num_contents is None else num_contents
    lengths = random.lognormal(np.log(mean_tokens) - sigma**2 / 2, sigma, count).clip(1, max_tokens).astype(int)
    contents = np.arange(len(times))
    if num_contents is not None:
        weights = 1 / np.arange(1, num_contents + 1)
        contents = random.choice(num_contents, len(times), p=weights / weights.sum())
    return [Request(at, int(lengths[content]), int(content)) for at, content in zip(times, contents, strict=True)]


def make_trace(load: LoadPattern, lengths: Sequence[int]) -> list[Request]:
    """Make the requests of a load test: its arrival times, and the lengths of its texts in turn."""
    return [
        Request(at, lengths[index % len(lengths)], index % len(lengths))
        for index, at in enumerate(load.arrival_times())
    ]
