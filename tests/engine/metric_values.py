"""Values of an engine's metrics."""

from __future__ import annotations

from cenote.engine.engine import PoolingEngine
from cenote.utils.metrics import MetricSeries


def get_series(engine: PoolingEngine, name: str) -> list[MetricSeries]:
    (family,) = [family for family in engine.metrics.registry.snapshot() if family.name == name]
    return family.series


def get_value(engine: PoolingEngine, name: str, *labels: str) -> float:
    return sum(series.value for series in get_series(engine, name) if series.labels == labels)
