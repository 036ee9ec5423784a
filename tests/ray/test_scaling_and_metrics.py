"""The number of replicas by the work in flight, and metrics as Ray gets them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cenote.errors import BadRequest
from cenote.ray.autoscaling import scale_on_queue
from cenote.ray.replica import RayMetrics
from cenote.ray.serve import app, convert_value
from cenote.utils.metrics import MetricsRegistry


@pytest.mark.parametrize(
    ("queue_seconds", "num_requests", "expected"),
    [({"a": 2.5, "b": 0.2}, 9, 3), ({"a": 0.1}, 1, 1), ({"a": 0.0, "b": 0.0}, 0, 0), ({}, 2, 1)],
)
def test_each_replica_gets_about_a_second_of_work(
    queue_seconds: dict[str, float], num_requests: int, expected: int
) -> None:
    context = SimpleNamespace(aggregated_metrics={"queue_seconds": queue_seconds}, total_num_requests=num_requests)

    assert scale_on_queue(context)[0] == expected


class Recorder:
    """Stands for a metric of Ray."""

    values: dict[str, float] = {}

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
        self.name = name

    def inc(self, value: float, tags: dict[str, str]) -> None:
        assert value > 0
        key = self.name + "".join(tags.values())
        self.values[key] = self.values.get(key, 0) + value

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.values[self.name] = value


def test_counters_are_exported_by_what_they_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    values: dict[str, float] = {}
    monkeypatch.setattr(Recorder, "values", values)
    stand_in: Any = SimpleNamespace(Counter=Recorder, Gauge=Recorder)
    monkeypatch.setattr("cenote.ray.replica.import_ray", lambda _: stand_in)
    registry = MetricsRegistry()
    add = registry.counter("requests_total", "Requests.", "route")
    observe = registry.histogram("seconds", "Seconds.", (1.0, 2.0))
    registry.gauge("waiting", "Waiting.", lambda: 7.0)
    metrics = RayMetrics()

    for _ in range(2):
        add("/a")
        add("/b", by=2)
        observe(1.5)
        metrics.export(registry.snapshot())
    metrics.export(registry.snapshot())

    assert values == {
        "requests_total/a": 2,
        "requests_total/b": 4,
        "seconds_sum": 3.0,
        "seconds_count": 2,
        "waiting": 7,
    }


def test_options_of_an_application_are_converted_as_on_the_command_line() -> None:
    given = {"api_key": "007,b", "port": "0", "min_replicas": "2", "max_model_len": "1k", "dtype": "float32"}

    assert {name: convert_value(name, value) for name, value in given.items()} == {
        "api_key": ("007", "b"),
        "port": 0,
        "min_replicas": 2,
        "max_model_len": 1000,
        "dtype": "float32",
    }
    assert convert_value("served_model_name", ["a", "b"]) == ("a", "b")
    with pytest.raises(BadRequest, match="min_replica"):
        app({"min_replica": 1})
