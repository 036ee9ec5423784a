"""Metrics of the HTTP server, and the collection of the metrics of all processes for `/metrics`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cenote.protocol.engine import Engine
from cenote.utils.metrics import LATENCY_BUCKETS, MetricFamily, MetricsRegistry


class ServerMetrics(Protocol):
    def observe_http(self, handler: str, method: str, status: int, seconds: float) -> None:
        """Record an HTTP response."""
        ...

    async def collect(self, engine: Engine) -> list[MetricFamily]:
        """Return the metrics of the whole server, those of other processes included."""
        ...


class LocalServerMetrics:
    """Metrics of a server whose HTTP responses are all recorded in this process."""

    def __init__(self, collect_admission: Callable[[], list[MetricFamily]]) -> None:
        self.collect_admission = collect_admission
        self.registry = MetricsRegistry()
        self._count_http = self.registry.counter(
            "http_requests_total", "HTTP responses, by route, method and status.", "handler", "method", "status"
        )
        self._observe_duration = self.registry.histogram(
            "http_request_duration_seconds",
            "Time from the request headers to the end of the response.",
            LATENCY_BUCKETS,
            "handler",
        )

    def observe_http(self, handler: str, method: str, status: int, seconds: float) -> None:
        self._count_http(handler, method, str(status))
        self._observe_duration(seconds, handler)

    async def collect(self, engine: Engine) -> list[MetricFamily]:
        return [*await engine.collect_metrics(), *self.snapshot()]

    def snapshot(self) -> list[MetricFamily]:
        """Return the metrics of the HTTP server."""
        return [*self.registry.snapshot(), *self.collect_admission()]
