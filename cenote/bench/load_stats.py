"""Statistics of a load test: rates, latency percentiles, server timing and error counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from cenote.bench.backends import Vectors
from cenote.bench.load import RequestSample
from cenote.errors import BadRequest

MAX_ERROR_KINDS = 20


@dataclass(frozen=True, slots=True)
class Percentiles:
    p50: float
    p90: float
    p99: float
    mean: float
    max: float

    @classmethod
    def from_seconds(cls, seconds: Sequence[float]) -> Percentiles | None:
        """Return percentiles in milliseconds, or None if there are no values."""
        if not seconds:
            return None
        values = np.asarray(seconds) * 1e3
        return cls(*(float(value) for value in (*np.percentile(values, (50, 90, 99)), values.mean(), values.max())))


@dataclass(frozen=True, slots=True)
class ErrorCount:
    status: int | None  # None without a response
    error: str
    count: int


@dataclass(frozen=True, slots=True)
class LoadStats:
    """Statistics of one round or of all rounds; rates and times cover successful requests only."""

    requests: int
    ok: int
    failed: int
    resent: int  # because an idle connection had been closed
    seconds: float  # from the start to the last response
    requests_per_s: float
    items_per_s: float
    tokens_per_s: float | None  # None if responses have no usage
    offered_per_s: float | None  # scheduled requests; None for a closed loop
    latency_ms: Percentiles | None  # since the request was due
    service_ms: Percentiles | None  # since it was sent
    client_late_ms: Percentiles | None  # from due to sent: delay in the client and waiting for --max-concurrency
    client_cpu: float  # fraction of one core; near 1 the client was the bottleneck
    server_timing_ms: dict[str, float]  # mean per name
    server_timing_share: dict[str, float]  # fraction of service_ms
    errors: list[ErrorCount] = field(default_factory=list)


@dataclass(slots=True)
class LoadRound:
    """Samples of one round."""

    samples: list[RequestSample]
    cpu_s: float = 0.0  # of the client
    num_resent: int = 0

    @property
    def seconds(self) -> float:
        return max((sample.finished for sample in self.samples), default=0.0)


def compute_load_stats(rounds: Sequence[LoadRound]) -> LoadStats:
    samples = [sample for round_ in rounds for sample in round_.samples]
    good = [sample for sample in samples if sample.error is None]
    seconds = max(sum(round_.seconds for round_ in rounds), 1e-9)
    tokens = [sample.tokens for sample in good if sample.tokens is not None]
    scheduled = any(sample.due != sample.sent for sample in samples)
    offered_s = sum(max((sample.due for sample in round_.samples), default=0.0) for round_ in rounds)
    timing, share = _server_timing_stats(good)
    return LoadStats(
        requests=len(samples),
        ok=len(good),
        failed=len(samples) - len(good),
        resent=sum(round_.num_resent for round_ in rounds),
        seconds=seconds,
        requests_per_s=len(good) / seconds,
        items_per_s=sum(sample.items for sample in good) / seconds,
        tokens_per_s=sum(tokens) / seconds if tokens else None,
        offered_per_s=len(samples) / offered_s if scheduled and offered_s else None,
        latency_ms=Percentiles.from_seconds([sample.latency for sample in good]),
        service_ms=Percentiles.from_seconds([sample.finished - sample.sent for sample in good]),
        client_late_ms=Percentiles.from_seconds([sample.sent - sample.due for sample in good]),
        client_cpu=sum(round_.cpu_s for round_ in rounds) / seconds,
        server_timing_ms=timing,
        server_timing_share=share,
        errors=_count_errors(samples),
    )


def _server_timing_stats(good: Sequence[RequestSample]) -> tuple[dict[str, float], dict[str, float]]:
    """Return mean milliseconds and fraction of service time per name, over responses that have the header."""
    timed = [sample for sample in good if sample.timing_ms]
    totals: defaultdict[str, float] = defaultdict(float)
    for sample in timed:
        for name, duration in sample.timing_ms:
            totals[name] += duration
    service = sum(sample.finished - sample.sent for sample in timed) * 1e3
    means = {name: total / len(timed) for name, total in totals.items()}
    return means, {name: total / service for name, total in totals.items()}


def _count_errors(samples: Sequence[RequestSample]) -> list[ErrorCount]:
    """Count errors by status and message, most frequent first; rare messages are merged per status."""
    counts = Counter((sample.status, sample.error) for sample in samples if sample.error is not None)
    kinds = [ErrorCount(status, error, times) for (status, error), times in counts.most_common(MAX_ERROR_KINDS)]
    rest: Counter[int | None] = Counter()
    for (status, _), times in counts.most_common()[MAX_ERROR_KINDS:]:
        rest[status] += times
    return kinds + [ErrorCount(status, "other messages", times) for status, times in rest.most_common()]


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of two engines, computed per round because clock speed drifts between rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def from_rounds(cls, ours: Sequence[float], theirs: Sequence[float]) -> Ratio | None:
        """Return None if there are no rounds or a value is 0."""
        if not ours or 0 in ours or 0 in theirs:
            return None
        factors = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        return cls(median(factors), min(factors), max(factors))


def format_ratio(ratio: Ratio | None) -> str:
    return "-" if ratio is None else f"{ratio.median:.2f}x ({ratio.least:.2f}-{ratio.most:.2f})"


def min_cosine(vectors: Vectors, reference: Vectors) -> float:
    """Return the minimum cosine similarity between rows of [n, d] arrays."""
    if vectors.shape != reference.shape:
        raise BadRequest(f"cannot compare vectors of shape {vectors.shape} with shape {reference.shape}")
    dots = (vectors * reference).sum(axis=1)
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(reference, axis=1)
    return float((dots / norms).min())
