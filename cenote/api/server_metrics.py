"""Metrics of the HTTP server, and the collection of the metrics of all processes for `/metrics`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cenote.api.admission.admission_metrics import collect_model_metrics, collect_server_metrics
from cenote.api.admission.counters import Counters
from cenote.api.admission.tenants import count_active_tenants
from cenote.utils.metrics import LATENCY_BUCKETS, MetricFamily, MetricsRegistry, add_label, merge_families

if TYPE_CHECKING:
    from cenote.api.served_models import ServedModels

MODEL_LABEL = "model_name"


class ServerMetrics(Protocol):
    def observe_http(self, handler: str, method: str, status: int, seconds: float) -> None:
        """Record an HTTP response."""
        ...

    async def collect(self) -> list[MetricFamily]:
        """Return the metrics of the whole server, those of other processes included."""
        ...


class HttpMetrics:
    """Metrics of HTTP responses and of what all models share."""

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
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

    def snapshot(self, model_name: str | None) -> list[MetricFamily]:
        """Return the metrics; `model_name` labels those of what all models share, if there is one model."""
        shared = collect_server_metrics(self.counters, count_active_tenants(self.counters))
        if model_name is not None:
            shared = [add_label(family, MODEL_LABEL, model_name) for family in shared]
        return [*self.registry.snapshot(), *shared]


class LocalServerMetrics(HttpMetrics):
    """Metrics of a server whose engine is in this process."""

    def __init__(self, counters: Counters, models: ServedModels) -> None:
        super().__init__(counters)
        self.models = models

    async def collect(self) -> list[MetricFamily]:
        model = self.models.first
        families = [*await model.engine.collect_metrics(), *collect_model_metrics(self.counters, 0)]
        return merge_families(
            [*(add_label(family, MODEL_LABEL, model.name) for family in families), *self.snapshot(model.name)]
        )
