"""ModelReplica: a replica of a Ray Serve deployment, with the ASGI app and the engine of one model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from cenote.api.admission.admission_metrics import count_queued
from cenote.api.admission.engine_speed import EngineSpeed
from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.api.served_models import EngineUse, ServedModel
from cenote.config.model_table import ModelEntry
from cenote.config.server import ServerConfig
from cenote.ray.asgi_calls import HttpRequest, HttpResponse, call_app, without_request_id
from cenote.ray.imports import import_ray
from cenote.ray.stage import set_threads
from cenote.utils.metrics import LabelValues, MetricFamily, MetricSeries

logger = logging.getLogger("cenote")

EXPORT_INTERVAL_S = 5.0
UNKNOWN_QUEUE_S = 1.0  # of requests in flight, before the speed has been measured


class ModelReplica:
    """Loads the model when it is created: Ray Serve sends requests to it afterwards."""

    def __init__(self, entry: ModelEntry, settings: ServerConfig, threads: int | None) -> None:
        set_threads(threads)
        from cenote.engine.engine import PoolingEngine

        self.app_state = AppState(settings)
        self.engine = PoolingEngine.load(entry.config)
        model = ServedModel(entry.name, entry.aliases, entry.source)
        model.accepts_source_names = entry.accepts_source_names
        model.set_use(EngineUse(self.engine, self.app_state.admission))
        self.app_state.admission.follow(self.engine)
        self.app_state.models.set([model])
        self.asgi_app = build_app(self.app_state)
        self._exporting: asyncio.Task[None] | None = None

    async def __serve_build_asgi_app__(self) -> Any:
        """Return the app that Ray Serve calls for HTTP requests; it runs in the event loop of the replica."""
        self._start_export()
        return without_request_id(self.asgi_app)

    async def http(self, request: HttpRequest) -> HttpResponse:
        """Answer a request that the router of several models sends."""
        self._start_export()
        return await call_app(self.asgi_app, request)

    async def check_health(self) -> None:
        """Raise if the engine has died: Ray Serve then replaces the replica."""
        if self.engine.dead_error is not None:
            raise self.engine.dead_error

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the seconds of work in flight, which `scale_on_queue` reads."""
        return {"queue_seconds": self.queue_seconds}

    @property
    def queue_seconds(self) -> float:
        counters = self.app_state.counters
        num_queued, speed = sum(count_queued(counters, 0)), EngineSpeed.read(counters, 0)
        return speed.estimate_wait(num_queued, UNKNOWN_QUEUE_S) if num_queued else 0.0

    def _start_export(self) -> None:
        if self._exporting is None:
            self._exporting = asyncio.get_running_loop().create_task(self._export_metrics())

    async def _export_metrics(self) -> None:
        metrics = RayMetrics()
        while True:
            try:
                metrics.export(await self.app_state.metrics.collect())
            except Exception:
                logger.exception("metrics were not exported to Ray")
            await asyncio.sleep(EXPORT_INTERVAL_S)


class RayMetrics:
    """Exports the metrics of an engine through Ray, which adds the deployment and the replica."""

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
