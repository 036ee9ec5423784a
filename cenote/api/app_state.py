"""State shared by all routes: the engine once loaded, the settings, and whether the server is ready."""

from __future__ import annotations

import time
from typing import Literal

from cenote.api.admission.controller import AdmissionController
from cenote.api.admission.counters import Counters
from cenote.api.auth import ApiKeyStore
from cenote.api.server_metrics import LocalServerMetrics, ServerMetrics
from cenote.config.server import ServerConfig
from cenote.errors import EngineStopped, NotReady
from cenote.protocol.engine import Engine, EngineStatus
from cenote.utils.bounded_executor import BoundedExecutor
from cenote.utils.metrics import MetricFamily

ServerStatus = EngineStatus | Literal["draining"]


class AppState:
    def __init__(self, settings: ServerConfig, counters: Counters | None = None) -> None:
        """`counters`: of what all front-ends have in flight; None if this process is the only one."""
        self.settings = settings
        self.api_keys = ApiKeyStore(settings.api_key, settings.api_key_file, settings.admin_api_key)
        self.use_counters(counters or Counters())
        self.started_at = time.monotonic()
        self.created = int(time.time())
        self.num_in_flight = 0  # requests to the model without a complete response
        self.num_in_flight_elsewhere = 0  # the same, in other front-end processes
        self.metrics_executor = BoundedExecutor("metrics", num_threads=1, max_waiting=64)
        self.metrics: ServerMetrics = LocalServerMetrics(self.collect_admission_metrics)
        self.are_front_ends_ready = True  # False while another front-end process is starting
        self._engine: Engine | None = None
        self.is_draining = False  # set by start_draining

    def use_counters(self, counters: Counters) -> None:
        """Admit requests by these counters; to be called before the first request."""
        settings = self.settings
        self.admission = AdmissionController(
            max_queue_tokens=settings.max_queue_tokens,
            max_queue_seconds=settings.max_queue_seconds,
            max_inflight_bytes=settings.max_inflight_bytes,
            counters=counters,
        )

    def collect_admission_metrics(self) -> list[MetricFamily]:
        return self.admission.collect_metrics(self.api_keys.keys)

    def set_engine(self, engine: Engine) -> None:
        self._engine = engine
        self.admission.set_device(engine.model_info.device)

    def start_draining(self) -> None:
        """Report not ready and close connections after their response, but still serve requests."""
        self.is_draining = True

    @property
    def status(self) -> ServerStatus:
        if self.is_draining:
            return "draining"
        if self._engine is None or (self._engine.status == "ready" and not self.are_front_ends_ready):
            return "loading"
        return self._engine.status

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self.started_at

    @property
    def engine(self) -> Engine:
        if self._engine is None or self._engine.status == "loading":
            raise NotReady(f"the model is loading (for {self.uptime_s:.1f} s so far); retry shortly")
        return self._engine

    @property
    def engine_or_none(self) -> Engine | None:
        return self._engine

    def check_ready(self) -> None:
        """Raise unless new requests should be sent to this server."""
        dead_error = self.engine.dead_error
        if dead_error is not None:
            raise EngineStopped(str(dead_error))
        if not self.are_front_ends_ready:
            raise NotReady("not all front-end processes are ready; retry shortly")
        if self.is_draining:
            raise NotReady("the server is shutting down; retry on another instance")
