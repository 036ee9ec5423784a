"""Metrics in the Prometheus text format, also under the names of vLLM and Text Embeddings Inference (TEI)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    UntypedMetricFamily,
)
from prometheus_client.registry import Collector

from cenote.utils.metrics import REPLICA_LABEL, MetricFamily, MetricSeries, add_label

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# vLLM name -> Cenote name; KV cache and preemption metrics have no counterpart in a pooling engine
VLLM_NAMES = {
    "vllm:num_requests_running": "cenote_requests_running",
    "vllm:num_requests_waiting": "cenote_requests_waiting",
    "vllm:prompt_tokens_total": "cenote_prompt_tokens_total",
    "vllm:request_success_total": "cenote_requests_total",
    "vllm:e2e_request_latency_seconds": "cenote_request_duration_seconds",
    "vllm:request_queue_time_seconds": "cenote_request_queue_seconds",
    "vllm:request_inference_time_seconds": "cenote_request_inference_seconds",
    "vllm:request_prefill_time_seconds": "cenote_request_inference_seconds",
    "vllm:request_prompt_tokens": "cenote_request_prompt_tokens",
    "vllm:iteration_tokens_total": "cenote_batch_tokens",
}
# the same for Text Embeddings Inference, whose counters have no suffix _total
TEI_NAMES = {
    "te_queue_size": "cenote_requests_waiting",
    "te_request_duration": "cenote_request_duration_seconds",
    "te_request_tokenization_duration": "cenote_request_tokenize_seconds",
    "te_request_queue_duration": "cenote_request_queue_seconds",
    "te_request_inference_duration": "cenote_request_inference_seconds",
    "te_request_input_length": "cenote_request_prompt_tokens",
    "te_batch_next_size": "cenote_batch_sequences",
    "te_batch_next_tokens": "cenote_batch_tokens",
}
TEI_FAILURES = {"failed": "inference", "refused": "overloaded", "expired": "dropped", "cancelled": "dropped"}
FINISHED_REASONS = {
    "answered": "stop",
    "cancelled": "abort",
    "failed": "error",
    "refused": "refused",
    "expired": "timeout",
}
# the counters of TEI that are sums over outcomes of requests
TEI_OUTCOMES: Mapping[str, Mapping[str, str | None]] = {
    "te_request_count": dict.fromkeys(FINISHED_REASONS),
    "te_request_success": {"answered": None},
    "te_request_failure": TEI_FAILURES,
}
METRIC_CLASSES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}


class _AllMetrics(Collector):
    """The metrics of the server under all of their names, and those of the process."""

    def __init__(self, families: Sequence[MetricFamily]) -> None:
        self.families = families

    def collect(self) -> Iterator[Metric]:
        yield from map(make_metric, self.families)
        by_name = {family.name: family for family in self.families}
        for name, cenote_name in VLLM_NAMES.items():
            if (family := by_name.get(cenote_name)) is not None:
                is_outcome = name == "vllm:request_success_total"
                alias = replace(_map_finished_reasons(family) if is_outcome else family, name=name)
                yield make_metric(_add_engine_label(alias))
        for name, cenote_name in TEI_NAMES.items():
            if (family := by_name.get(cenote_name)) is not None:
                yield make_metric(replace(family, name=name))
        if (requests := by_name.get("cenote_requests_total")) is not None:
            for name, errors in TEI_OUTCOMES.items():
                # of a counter whose name lacks _total, prometheus_client would add it
                yield make_metric(_sum_outcomes(requests, name, errors), UntypedMetricFamily)
        yield from ProcessCollector(registry=None).collect()


def render_metrics(families: Sequence[MetricFamily]) -> bytes:
    return generate_latest(_AllMetrics(families))


def _sum_outcomes(family: MetricFamily, name: str, errors: Mapping[str, str | None]) -> MetricFamily:
    """Return the sums over these outcomes, by the label `err` in place of the outcome; None: without the label."""
    at = family.label_names.index("outcome")
    sums: dict[tuple[str, ...], float] = {}
    for item in family.series:
        if item.labels[at] in errors:
            error = errors[item.labels[at]]
            labels = (*item.labels[:at], *(() if error is None else (error,)), *item.labels[at + 1 :])
            sums[labels] = sums.get(labels, 0.0) + item.value
    label = ("err",) if any(errors.values()) else ()
    names = (*family.label_names[:at], *label, *family.label_names[at + 1 :])
    return replace(family, name=name, label_names=names, series=[MetricSeries(*entry) for entry in sums.items()])


def _add_engine_label(family: MetricFamily) -> MetricFamily:
    """Return the family with vLLM's label for data parallelism."""
    if REPLICA_LABEL not in family.label_names:
        return add_label(family, "engine", "0")
    names = tuple("engine" if name == REPLICA_LABEL else name for name in family.label_names)
    return replace(family, label_names=names)


def make_metric(family: MetricFamily, metric_class: Any = None) -> Metric:
    """Convert a family to a metric of prometheus_client."""
    metric = (metric_class or METRIC_CLASSES[family.kind])(family.name, family.help, labels=family.label_names)
    for series in family.series:
        buckets = [_make_cumulative_buckets(family, series)] if family.kind == "histogram" else []
        metric.add_metric(series.labels, *buckets, series.value)
    return metric  # type: ignore[no-any-return]


def _make_cumulative_buckets(family: MetricFamily, series: MetricSeries) -> list[tuple[str, float]]:
    """Return cumulative bucket counts by upper bound, the last one +Inf."""
    bounds = [*(str(float(bound)) for bound in family.bounds), "+Inf"]
    return list(zip(bounds, accumulate(series.counts), strict=True))


def _map_finished_reasons(family: MetricFamily) -> MetricFamily:
    """Replace the values of the label `outcome` by vLLM's, under its name of the label."""
    at = family.label_names.index("outcome")
    names = tuple("finished_reason" if name == "outcome" else name for name in family.label_names)
    series = [
        replace(
            item,
            labels=tuple(
                FINISHED_REASONS.get(value, value) if index == at else value for index, value in enumerate(item.labels)
            ),
        )
        for item in family.series
    ]
    return replace(family, label_names=names, series=series)
