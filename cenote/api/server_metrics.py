"""Metrics of the HTTP server, and the collection of the metrics of all processes for `/metrics`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cenote.api.wire.control_messages import ReplayStats
from cenote.protocol.engine import Engine
from cenote.utils.metrics import LATENCY_BUCKETS, MetricFamily, MetricsRegistry


class ServerMetrics(Protocol):
    def observe_http(self, handler: str, method: str, status: int, seconds: float) -> None:
        """Record an HTTP response."""
        ...

    def observe_replay(self, stats: ReplayStats) -> None:
        """Record requests that were sent to another engine process."""
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

        self._count_replayed = self.registry.counter(
            "cenote_requests_replayed_total", "Requests sent again because an engine process or a link to it was lost."
        )
        self._count_quarantined = self.registry.counter(
            "cenote_requests_quarantined_total",
            "Requests with inputs that were on the device when an engine process died, and then ran alone.",
        )
        self._count_poison = self.registry.counter(
            "cenote_poison_inputs_total", "Inputs refused because the engine process died twice while it computed them."
        )

    def observe_replay(self, stats: ReplayStats) -> None:
        self._count_replayed(by=stats.num_replayed)
        self._count_quarantined(by=stats.num_quarantined)
        self._count_poison(by=stats.num_poison)

    def observe_http(self, handler: str, method: str, status: int, seconds: float) -> None:
        self._count_http(handler, method, str(status))
        self._observe_duration(seconds, handler)

    async def collect(self, engine: Engine) -> list[MetricFamily]:
        return [*await engine.collect_metrics(), *self.snapshot()]

    def snapshot(self) -> list[MetricFamily]:
        """Return the metrics of the HTTP server."""
        return [*self.registry.snapshot(), *self.collect_admission()]
