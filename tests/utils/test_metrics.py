"""Metrics: exact sums, bucket bounds, snapshots."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from cenote.utils.metrics import MAX_DEFERRED, MetricFamily, MetricsRegistry


def get_family(metrics: MetricsRegistry, name: str) -> MetricFamily:
    return next(family for family in metrics.snapshot() if family.name == name)


def test_a_counter_adds_up_by_its_labels() -> None:
    metrics = MetricsRegistry()
    add = metrics.counter("replies_total", "Replies.", "status")
    add("200")
    add("200", by=2)
    add("404")

    assert {series.labels: series.value for series in get_family(metrics, "replies_total").series} == {
        ("200",): 3,
        ("404",): 1,
    }


def test_a_counter_without_labels_shows_zero_before_anything_is_counted() -> None:
    metrics = MetricsRegistry()
    metrics.counter("tokens_total", "Tokens.")

    assert [series.value for series in get_family(metrics, "tokens_total").series] == [0]


def test_a_value_equal_to_an_upper_bound_belongs_to_that_bucket() -> None:
    metrics = MetricsRegistry()
    observe = metrics.histogram("seconds", "Seconds.", (1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        observe(value)

    (series,) = get_family(metrics, "seconds").series
    assert series.counts == [2, 2, 1]
    assert series.value == 14.0


def test_a_gauge_is_read_at_snapshot_time() -> None:
    metrics, values = MetricsRegistry(), [1.0]
    metrics.gauge("waiting", "Waiting.", lambda: values[0])
    values[0] = 7.0

    assert [series.value for series in get_family(metrics, "waiting").series] == [7.0]


def test_a_snapshot_does_not_change_any_more() -> None:
    metrics = MetricsRegistry()
    observe = metrics.histogram("seconds", "Seconds.", (1.0,))
    observe(0.5)
    before = get_family(metrics, "seconds")
    observe(0.5)

    assert before.series[0].counts == [1, 0]


@pytest.mark.parametrize("is_deferred", [False, True])
def test_no_increment_of_concurrent_threads_is_lost(is_deferred: bool) -> None:
    metrics = MetricsRegistry()
    add = metrics.counter("tokens_total", "Tokens.")
    increment = partial(metrics.defer, add) if is_deferred else add
    threads = [threading.Thread(target=lambda: [increment() for _ in range(2000)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert get_family(metrics, "tokens_total").series[0].value == 16_000


def test_deferred_updates_are_in_the_next_snapshot_and_never_many_wait() -> None:
    metrics = MetricsRegistry()
    add = metrics.counter("requests_total", "Requests.")
    recorded: list[int] = []
    for number in range(10 * MAX_DEFERRED + 3):
        metrics.defer(add, by=2)
        metrics.defer(recorded.append, number)
        assert number - len(recorded) < MAX_DEFERRED

    (series,) = get_family(metrics, "requests_total").series
    assert series.value == 2 * (10 * MAX_DEFERRED + 3)
    assert recorded == list(range(10 * MAX_DEFERRED + 3))


def test_a_snapshot_waits_for_what_another_thread_is_recording() -> None:
    metrics = MetricsRegistry()
    add = metrics.counter("requests_total", "Requests.")
    reached, opened = threading.Event(), threading.Event()

    def record() -> None:
        reached.set()
        assert opened.wait(20)
        add()

    metrics.defer(record)
    recording = threading.Thread(target=metrics.snapshot)
    recording.start()
    assert reached.wait(20)
    threading.Timer(0.1, opened.set).start()

    (series,) = get_family(metrics, "requests_total").series
    recording.join()
    assert series.value == 1
