"""ServiceTime: how long a replica computes a batch, and what a request takes beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from cenote.errors import BadRequest

NUM_REFITS = 20  # of least squares without the coefficients that came out negative
CONTENTIONS = np.linspace(0.0, 2.0, 201)  # that a fit tries


@dataclass(frozen=True, slots=True)
class LoadWindow:
    """What a server computed in a few seconds of load: totals of its metrics."""

    batches: float
    sequences: float
    tokens: float
    device_s: float
    others: float = 0.0  # mean number of other replicas that computed at the same time
    waiting_s: float | None = None  # of all replicas, while requests waited for them; None if they were idle at times


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """Seconds of a batch: `batch_s + sequence_s * sequences + token_s * tokens`, times a random factor.

    Replicas may share cores or memory with each other and with the front-end: for each other replica that computes
    at the same time, a batch takes `contention` times as long in addition.
    """

    batch_s: float
    sequence_s: float
    token_s: float
    overhead_s: float = 0.0  # of a request, before and after its batch: HTTP, tokenization, delivery
    factors: tuple[float, ...] = (1.0,)  # measured time of a batch divided by the expected one; one is drawn
    contention: float = 0.0
    gap_s: float = 0.0  # from the end of a batch to the start of the next one that waits: packing and delivery

    def expected_s(self, sequences: float, tokens: float, others: float = 0.0, batches: float = 1.0) -> float:
        alone = self.batch_s * batches + self.sequence_s * sequences + self.token_s * tokens
        return alone * (1 + self.contention * others)

    def tokens_per_s(self, sequences: int, tokens: int) -> float:
        """Return the speed with batches of this size."""
        return tokens / (self.expected_s(sequences, tokens) * float(np.mean(self.factors)) + self.gap_s)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> ServiceTime:
        try:
            values = json.loads(path.read_bytes())
            return cls(**{**values, "factors": tuple(values["factors"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadRequest(f"{path} is not a service time as --measure writes it: {error}") from error


def fit_service_time(
    windows: Sequence[LoadWindow], overhead_s: float, factors: Sequence[float] = (1.0,)
) -> ServiceTime:
    """Fit the coefficients by least squares of relative errors; none is negative."""
    if len(windows) < 3:
        raise BadRequest(f"3 coefficients cannot be fitted to {len(windows)} windows; measure at least 3")
    if any(window.device_s <= 0 for window in windows):
        raise BadRequest("a window has no device seconds: the server computed nothing in it")
    has_others = any(window.others > 0 for window in windows)
    fits = [_fit_alone(windows, float(contention)) for contention in (CONTENTIONS if has_others else (0.0,))]
    best = min(fits, key=lambda fit: sum(error**2 for error in relative_errors(fit, windows)))
    return replace(best, overhead_s=overhead_s, factors=tuple(factors), gap_s=measure_gap(windows))


def measure_gap(windows: Sequence[LoadWindow]) -> float:
    """Return the mean time between two batches, from windows in which every replica always had requests waiting."""
    gaps = [(window.waiting_s, window) for window in windows if window.waiting_s is not None]
    return max(0.0, fmean((seconds - window.device_s) / window.batches for seconds, window in gaps)) if gaps else 0.0


def _fit_alone(windows: Sequence[LoadWindow], contention: float) -> ServiceTime:
    """Fit the coefficients of a batch for a given contention."""
    counts = np.array([(window.batches, window.sequences, window.tokens) for window in windows])
    seconds = np.array([window.device_s / (1 + contention * window.others) for window in windows])
    matrix, ones = counts / seconds[:, None], np.ones(len(windows))
    used = [0, 1, 2]
    coefficients = np.zeros(3)
    for _ in range(NUM_REFITS):
        found = np.linalg.lstsq(matrix[:, used], ones, rcond=None)[0]
        if (found >= 0).all():
            coefficients[used] = found
            break
        used.remove(used[int(found.argmin())])
    batch_s, sequence_s, token_s = map(float, coefficients)
    return ServiceTime(batch_s, sequence_s, token_s, contention=contention)


def relative_errors(service: ServiceTime, windows: Sequence[LoadWindow]) -> list[float]:
    """Return by how much the fit differs from each window."""
    return [
        service.expected_s(window.sequences, window.tokens, window.others, window.batches) / window.device_s - 1
        for window in windows
    ]
