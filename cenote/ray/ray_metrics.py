"""RayMetrics: export the metrics of an engine through Ray, which adds the deployment and the replica."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cenote.ray.imports import import_ray
from cenote.utils.metrics import LabelValues, MetricFamily, MetricSeries


class RayMetrics:
    def __init__(self) -> None:
        self.serve_metrics = import_ray("ray.serve.metrics")
        self._metrics: dict[str, Any] = {}
        self._exported: dict[tuple[str, LabelValues], float] = {}  # totals of counters

    def export(self, families: Iterable[MetricFamily]) -> None:
        """Set gauges, and add to counters what they have gained; of a histogram the sum and the count are exported."""
        for family in families:
            for series in family.series:
                self._export_series(family, series)

    def _export_series(self, family: MetricFamily, series: MetricSeries) -> None:
        tags = dict(zip(family.label_names, series.labels, strict=True))
        if family.kind == "gauge":
            self._get("Gauge", family.name, family).set(series.value, tags)
        elif family.kind == "counter":
            self._add(family.name, family, series.labels, series.value)
        else:
            self._add(f"{family.name}_sum", family, series.labels, series.value)
            self._add(f"{family.name}_count", family, series.labels, sum(series.counts))

    def _add(self, name: str, family: MetricFamily, labels: LabelValues, total: float) -> None:
        gained = total - self._exported.get((name, labels), 0.0)
        if gained > 0:
            tags = dict(zip(family.label_names, labels, strict=True))
            self._get("Counter", name, family).inc(gained, tags)
            self._exported[name, labels] = total

    def _get(self, kind: str, name: str, family: MetricFamily) -> Any:
        if name not in self._metrics:
            make = getattr(self.serve_metrics, kind)
            self._metrics[name] = make(
                name.replace(":", "_"), description=family.help, tag_keys=tuple(family.label_names)
            )
        return self._metrics[name]
