"""Counters, gauges and histograms in Prometheus' data model; snapshots can be sent to other processes."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
TOKEN_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
BATCH_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536)

# calls of `defer` that wait: those of about four requests, one of which takes 40 us longer to record them
MAX_DEFERRED = 16

REPLICA_LABEL = "replica"  # of models with several: the number of the replica

LabelValues = tuple[str, ...]


@dataclass(slots=True)
class MetricSeries:
    """The values of a metric family for one set of label values."""

    labels: LabelValues
    value: float = 0.0  # for a histogram: the sum of the observed values
    counts: list[int] = field(default_factory=list)  # for a histogram: observations per bucket, the last is unbounded


@dataclass(slots=True)
class MetricFamily:
    """All series of one metric."""

    name: str
    help: str
    kind: Literal["counter", "gauge", "histogram"]
    label_names: LabelValues = ()
    bounds: tuple[float, ...] = ()
    series: list[MetricSeries] = field(default_factory=list)


class MetricsRegistry:
    """Thread-safe registry of metrics."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._families: dict[str, MetricFamily] = {}
        self._series: dict[tuple[str, LabelValues], MetricSeries] = {}
        self._gauges: dict[str, Callable[[], Mapping[LabelValues, float]]] = {}
        self._deferred: deque[Callable[[], None]] = deque()
        self._record_lock = threading.RLock()  # a signal handler may finish requests

    def counter(self, name: str, help_text: str, *label_names: str) -> Callable[..., None]:
        """Declare a counter and return the function that increments it: `add(*label_values, by=1)`."""
        self._declare(MetricFamily(name, help_text, "counter", label_names))
        known: dict[LabelValues, MetricSeries] = {}

        def add(*labels: str, by: float = 1.0) -> None:
            with self._lock:
                series = known.get(labels)
                if series is None:
                    series = known[labels] = self._get_series(name, labels)
                series.value += by

        if not label_names:
            add(by=0.0)  # expose the counter as 0 from the start
        return add

    def histogram(self, name: str, help_text: str, bounds: tuple[float, ...], *label_names: str) -> Callable[..., None]:
        """Declare a histogram; return the function that records a value: `observe(value, *label_values, times=1)`."""
        self._declare(MetricFamily(name, help_text, "histogram", label_names, bounds))
        known: dict[LabelValues, MetricSeries] = {}

        def observe(value: float, *labels: str, times: int = 1) -> None:
            with self._lock:
                series = known.get(labels)
                if series is None:
                    series = known[labels] = self._get_series(name, labels)
                    series.counts = [0] * (len(bounds) + 1)
                series.counts[bisect_left(bounds, value)] += times
                series.value += value * times

        return observe

    def gauge(
        self, name: str, help_text: str, read_value: Callable[[], float], kind: Literal["gauge", "counter"] = "gauge"
    ) -> None:
        """Declare a metric whose value is read by a callback on each snapshot."""
        self._declare(MetricFamily(name, help_text, kind))
        self._gauges[name] = lambda: {(): read_value()}

    def gauge_by_label(
        self, name: str, help_text: str, label_name: str, read_values: Callable[[], Mapping[str, float]]
    ) -> None:
        """Declare a gauge whose values, by label value, are read by a callback on each snapshot."""
        self._declare(MetricFamily(name, help_text, "gauge", (label_name,)))
        self._gauges[name] = lambda: {(label,): value for label, value in read_values().items()}

    def defer(self, record: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Call `record`, which updates metrics, with these arguments before the next snapshot.

        Most requests do not wait for their metrics, and updates of several in a row find everything in the CPU cache.
        """
        self._deferred.append(partial(record, *args, **kwargs))
        if len(self._deferred) >= MAX_DEFERRED:
            self._record_deferred()

    def _record_deferred(self) -> None:
        with self._record_lock:
            while self._deferred:
                self._deferred.popleft()()

    def snapshot(self) -> list[MetricFamily]:
        """Return a copy of all metrics, in the order of declaration."""
        self._record_deferred()
        values = {name: read() for name, read in self._gauges.items()}
        with self._lock:
            copies = {
                name: MetricFamily(family.name, family.help, family.kind, family.label_names, family.bounds)
                for name, family in self._families.items()
            }
            for (name, labels), series in self._series.items():
                copies[name].series.append(MetricSeries(labels, series.value, list(series.counts)))
        for name, by_labels in values.items():
            copies[name].series += [MetricSeries(labels, value) for labels, value in by_labels.items()]
        return list(copies.values())

    def _declare(self, family: MetricFamily) -> None:
        assert family.name not in self._families, f"{family.name} is declared twice"
        self._families[family.name] = family

    def _get_series(self, name: str, labels: LabelValues) -> MetricSeries:
        key = (name, labels)
        if key not in self._series:
            label_names = self._families[name].label_names
            assert len(labels) == len(label_names), f"{name} has the labels {label_names}, got {labels}"
            self._series[key] = MetricSeries(labels)
        return self._series[key]


def add_label(family: MetricFamily, name: str, value: str) -> MetricFamily:
    """Return the family with one more label, the first, on every series."""
    series = [replace(item, labels=(value, *item.labels)) for item in family.series]
    if not series and family.kind == "histogram" and not family.label_names:  # exposed before the first observation
        series = [MetricSeries((value,), counts=[0] * (len(family.bounds) + 1))]
    return replace(family, label_names=(name, *family.label_names), series=series)


def merge_families(families: Iterable[MetricFamily]) -> list[MetricFamily]:
    """Join the families of the same name, such as those of several processes; series with the same labels are added."""
    merged: dict[str, dict[LabelValues, MetricSeries]] = {}
    first: dict[str, MetricFamily] = {}
    for family in families:
        first.setdefault(family.name, family)
        by_labels = merged.setdefault(family.name, {})
        for series in family.series:
            known = by_labels.get(series.labels)
            if known is None:
                by_labels[series.labels] = replace(series, counts=list(series.counts))
            else:
                known.value += series.value
                known.counts = [a + b for a, b in zip(known.counts, series.counts, strict=True)] or known.counts
    return [replace(first[name], series=list(by_labels.values())) for name, by_labels in merged.items()]
