"""ModelReplica: a replica of a Ray Serve deployment, with the ASGI app and the engine of one model."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from cenote.api.admission.admission_metrics import count_queued
from cenote.api.admission.engine_speed import EngineSpeed
from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.api.served_models import EngineUse, ServedModel
from cenote.config.model_table import ModelEntry
from cenote.config.server import ServerConfig
from cenote.ray.asgi_calls import HttpRequest, HttpResponse, call_app, without_request_id
from cenote.ray.ray_metrics import RayMetrics
from cenote.ray.threads import set_threads

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
