"""Metrics of admission, read from the counters of all front-ends."""

from __future__ import annotations

import time
from collections.abc import Sequence

from cenote.api.admission.counters import (
    BYTES,
    MEMORY,
    NUM_SIZE_CLASSES,
    OPEN_FILES,
    QUEUED,
    REASONS,
    REFUSED,
    USED_AT,
    Counters,
    find_model_column,
)
from cenote.api.admission.engine_speed import EngineSpeed
from cenote.protocol.scheduling import Lane
from cenote.utils.metrics import MetricFamily, MetricSeries

LANES: tuple[Lane, ...] = ("interactive", "bulk")


def collect_model_metrics(counters: Counters, slot: int) -> list[MetricFamily]:
    """Return the metrics of the model that has this slot."""
    column = find_model_column(slot)
    refused = [MetricSeries((reason,), counters.total(column + REFUSED + i)) for i, reason in enumerate(REASONS)]
    return [
        MetricFamily(
            "cenote_requests_refused_total", "Requests refused by admission.", "counter", ("reason",), series=refused
        ),
        _make_lane_gauge(
            "cenote_admitted_tokens",
            "Tokens in flight, estimated until they are tokenized.",
            count_queued(counters, slot),
        ),
        _make_lane_gauge(
            "cenote_drain_tokens_per_second",
            "Tokens computed per second while enough wait, as the engines measure it; equal for both lanes.",
            [EngineSpeed.read(counters, slot).tokens_per_s] * len(LANES),
        ),
    ]


def collect_server_metrics(counters: Counters, num_active_tenants: int) -> list[MetricFamily]:
    """Return the metrics of what all models share."""
    return [
        _make_gauge("cenote_inflight_bytes", "Bytes of requests and answers in flight.", counters.total(BYTES)),
        _make_gauge("cenote_active_tenants", "API keys with recent requests.", num_active_tenants),
        MetricFamily(
            "cenote_used_share",
            "Part of a limit of the system that is in use, by the front-end that uses most of it.",
            "gauge",
            ("resource",),
            series=[
                MetricSeries((name,), max(counters.rows(column)))
                for name, column in (("descriptors", OPEN_FILES), ("memory", MEMORY))
            ],
        ),
    ]


def count_queued(counters: Counters, slot: int) -> list[float]:
    """Return the tokens in flight of a model, by lane."""
    first = find_model_column(slot) + QUEUED
    return [counters.total(first), counters.total_up_to(first + 1, NUM_SIZE_CLASSES - 1)]


def measure_idle_s(counters: Counters, slot: int, since: float) -> float:
    """Return the seconds since the last request to a model ended, or since that time; 0.0 if one is in flight."""
    if sum(count_queued(counters, slot)) > 0:
        return 0.0
    return max(0.0, time.monotonic() - max(since, *counters.rows(find_model_column(slot) + USED_AT)))


def _make_gauge(name: str, help_text: str, value: float) -> MetricFamily:
    return MetricFamily(name, help_text, "gauge", series=[MetricSeries((), value)])


def _make_lane_gauge(name: str, help_text: str, values: Sequence[float]) -> MetricFamily:
    series = [MetricSeries((lane,), value) for lane, value in zip(LANES, values, strict=True)]
    return MetricFamily(name, help_text, "gauge", ("lane",), series=series)
