"""AdmissionController: what is admitted, what is refused and with which error."""

from __future__ import annotations

from typing import Any

import pytest

from cenote.api.admission.admission_metrics import collect_model_metrics
from cenote.api.admission.controller import (
    MAX_INTERACTIVE_TOKENS,
    MIN_REQUESTS,
    AdmissionController,
    find_size_class,
)
from cenote.api.admission.counters import BYTES, MODELS, QUEUED, REQUESTS, Counters, make_counters_file
from cenote.api.admission.engine_speed import RECOVERY_S, SpeedReport
from cenote.api.api_keys import ANONYMOUS, KeySettings, parse_key_lines
from cenote.errors import BodyTooLarge, DeadlineExceeded, Overloaded

from .simulated_server import Outcome, SimulatedServer


class Clock:
    def __init__(self) -> None:
        self.now = 6000.0  # the start of a minute

    def __call__(self) -> float:
        return self.now


def make_controller(clock: Clock | None = None, **limits: Any) -> AdmissionController:
    values = {"max_queue_tokens": 2**25, "max_inflight_bytes": 2**31, **limits}
    return AdmissionController(clock=clock or Clock(), **values)


@pytest.mark.parametrize(
    ("tokens_per_s", "overhead_s", "mean_tokens", "seconds"),
    [(20_000, 0.004, 25, 10), (20_000, 0.004, 2000, 60), (2000, 0.02, 60, 30), (300, 0.05, 60, 60)],
    ids=["small model, queries", "small model, passages", "large model", "slow machine"],
)
def test_in_overload_requests_are_refused_and_the_others_answered_soon(
    tokens_per_s: float, overhead_s: float, mean_tokens: int, seconds: float
) -> None:
    server = SimulatedServer(tokens_per_s, overhead_s)
    normal = server.run(0.7, seconds, mean_tokens)
    server.run(10, seconds, mean_tokens)  # begins with a burst
    overload = server.run(10, seconds, mean_tokens)

    assert not normal.retry_after
    assert overload.percentile(0.99) <= max(3 * normal.percentile(0.99), 0.35)
    assert overload.tokens >= 0.85 * tokens_per_s * seconds
    assert len(overload.retry_after) > 0.85 * (len(overload.retry_after) + len(overload.latencies))
    assert 0.05 <= min(overload.retry_after) < max(overload.retry_after) <= 120
    server.run(0.5, 2, mean_tokens)
    assert not server.run(0.5, seconds, mean_tokens).retry_after


def test_a_burst_of_hundreds_of_requests_is_admitted() -> None:
    server = SimulatedServer(20_000, 0.004)
    server.run(0.3, 30, 25)

    tickets = [server.controller.admit(25) for _ in range(256)]

    assert len(tickets) == 256


def test_a_request_is_admitted_when_nothing_is_in_flight_whatever_the_measured_rate() -> None:
    controller = make_controller(max_queue_seconds=0.001)

    ticket = controller.admit(4000)
    with pytest.raises(Overloaded, match="overloaded: 16000 tokens in flight, limit 16384; retry later"):
        for _ in range(10):
            controller.admit(4000)
    ticket.release(is_completed=False)


def test_few_requests_are_admitted_beside_one_that_is_larger_than_the_queue() -> None:
    server = SimulatedServer(2000, 0.005)
    server.run(10, 10, 10)  # until its speed is known
    server.run(0.001, 3, 10)
    controller = server.controller
    assert server.limit < 2000
    image = controller.admit(3000)

    texts = [controller.admit(10, num_inputs=2) for _ in range(MIN_REQUESTS - 1)]
    with pytest.raises(Overloaded, match=r"overloaded: 3150 tokens in flight"):
        controller.admit(10, num_inputs=2)
    controller.check_open(100, "bulk", ANONYMOUS, ())
    with pytest.raises(Overloaded):
        controller.check_open(100, None, ANONYMOUS, ())
    texts[0].release(is_completed=True)
    controller.check_open(100, None, ANONYMOUS, ())
    texts[0] = controller.admit(10)
    for ticket in (image, *texts):
        ticket.release(is_completed=False)
    assert controller.counters.total(MODELS + REQUESTS) == 0


def test_twelve_clients_with_eight_short_texts_are_not_refused_by_a_slow_server() -> None:
    server = SimulatedServer(200, 0.05)
    server.run(0.7, 30, 10)  # until its speed is known
    server.run(0.001, 3, 10)
    controller = server.controller
    assert server.limit < 12 * 116

    tickets = [controller.admit(116, num_inputs=8) for _ in range(12)]

    assert len(tickets) == 12
    assert not controller.is_overloaded


def test_a_key_above_its_share_is_admitted_while_few_requests_are_in_flight() -> None:
    server = SimulatedServer(2000, 0.005)
    server.run(10, 10, 10)  # until its speed is known
    server.run(0.001, 3, 10)
    controller, keys = server.controller, make_keys("a", "b")
    controller.admit(10, None, keys[0], keys)
    controller.admit(3000, None, keys[1], keys)

    for _ in range(MIN_REQUESTS - 2):
        controller.admit(10, None, keys[1], keys, num_inputs=2)
    with pytest.raises(Overloaded, match="its share of the queue is"):
        controller.admit(10, None, keys[1], keys, num_inputs=2)


def test_a_key_above_its_share_is_admitted_while_the_queue_has_room() -> None:
    clock = Clock()
    controller, keys = make_controller(clock), make_keys("a", "b")
    limit = controller.limits[0].times.initial_tokens
    for _ in range(MIN_REQUESTS):
        controller.admit(10, None, keys[0], keys)
    for _ in range(3):
        controller.admit(int(limit / 4), None, keys[1], keys)

    with pytest.raises(Overloaded, match="tokens in flight and the request about 4096, its share of the queue is"):
        controller.admit(4096, None, keys[1], keys, num_inputs=2)
    clock.now += 0.1
    controller.admit(4000, None, keys[0], keys, num_inputs=2)  # below its share


def test_a_request_larger_than_the_queue_is_refused_for_good() -> None:
    with pytest.raises(BodyTooLarge, match="about 101 tokens.* limit 100; split the request, or raise --max-queue-tok"):
        make_controller(max_queue_tokens=100).admit(101)


def test_bytes_above_the_limit_are_refused_now_or_for_good() -> None:
    controller = make_controller(max_inflight_bytes=1000)
    controller.add_bytes(600, "the body")

    with pytest.raises(Overloaded, match="600 bytes of requests and answers in flight and 500 in this one, limit 1000"):
        controller.add_bytes(500, "the body")
    with pytest.raises(BodyTooLarge, match="the answer would take about 1001 bytes, limit 1000"):
        controller.add_bytes(1001, "the answer")
    with pytest.raises(Overloaded):
        controller.check_open(500, None, ANONYMOUS, ())
    assert controller.counters.total(BYTES) == 600
    controller.remove_bytes(600)
    controller.add_bytes(1000, "the body")


def test_large_requests_do_not_stop_small_ones() -> None:
    controller = make_controller()
    for _ in range(3):
        controller.admit(2_000_000)

    controller.admit(100)
    assert controller.admit(10_000).lane == "bulk"


@pytest.mark.parametrize(
    ("tokens", "lane", "size_class"),
    [(1, None, 0), (MAX_INTERACTIVE_TOKENS, None, 0), (MAX_INTERACTIVE_TOKENS + 1, None, 1), (10**9, None, 5)]
    + [(1, "bulk", 1), (10**6, "interactive", 0), (100_000, "bulk", 3)],
)
def test_the_lane_is_that_of_the_header_or_follows_from_the_size(tokens: int, lane: Any, size_class: int) -> None:
    assert find_size_class(tokens, lane) == size_class


def test_a_deadline_before_the_work_ahead_is_done_is_refused_at_once() -> None:
    server = SimulatedServer(2000, 0.02)
    server.run(0.7, 10, 60)
    server.run(10, 10, 60)
    server.run(0.1, 10, 60)
    for _ in range(10):
        server.controller.admit(60)

    with pytest.raises(DeadlineExceeded, match=r"tokens are ahead of the request, about 0\.\d+ s"):
        server.controller.admit(60, deadline_at=server.now + 0.2)
    server.controller.admit(60, deadline_at=server.now + 1)
    with pytest.raises(DeadlineExceeded):
        make_controller().admit(1, deadline_at=1.0)


# tenants


def make_keys(*lines: str) -> list[KeySettings]:
    return parse_key_lines(line.encode() for line in lines)


def fill(controller: AdmissionController, key: KeySettings, keys: list[KeySettings], tokens: int = 100) -> int:
    """Send requests of one key until one is refused; return how many were admitted."""
    for count in range(10_000):
        try:
            controller.admit(tokens, None, key, keys)
        except Overloaded:
            return count
    raise AssertionError("nothing was refused")


def test_a_key_fills_the_queue_alone_and_its_share_while_others_are_active() -> None:
    clock = Clock()
    controller, keys = make_controller(clock), make_keys("a", "b", "c weight=2")

    alone = fill(controller, keys[0], keys)
    clock.now += 0.1
    second = fill(controller, keys[1], keys)
    clock.now += 0.1
    third = fill(controller, keys[2], keys)

    assert 0 < second <= alone // 2 + 1  # the queue was full, but not with requests of this key
    assert third > 0 and abs(third / 2 - second / 2) <= 1  # half of the queue for two of four parts
    clock.now += 0.1
    with pytest.raises(Overloaded, match="this API key has .* tokens in flight and .* its share of the queue is"):
        controller.admit(100, None, keys[0], keys)


def test_limits_of_a_key_are_its_own() -> None:
    clock = Clock()
    controller, keys = make_controller(clock), make_keys("a max-queue-tokens=1k", "b max-tokens-per-minute=500", "c")

    assert fill(controller, keys[0], keys) == 10
    assert fill(controller, keys[1], keys) == 5
    controller.admit(100, None, keys[2], keys)
    with pytest.raises(Overloaded, match="has used 500 of 500 tokens per minute and the request has about 100"):
        controller.admit(100, None, keys[1], keys)
    with pytest.raises(BodyTooLarge, match="limit 500 per minute of this API key"):
        controller.admit(501, None, keys[1], keys)
    clock.now += 60
    controller.admit(100, None, keys[1], keys)


def test_front_ends_share_limits_and_a_dead_one_releases_what_it_held() -> None:
    fd = make_counters_file(2)
    rows = [Counters(fd, 2, row) for row in range(2)]
    first, second = (make_controller(counters=counters, max_inflight_bytes=1000) for counters in rows)
    supervisor = Counters(fd, 2, row=None)
    first.admit(8000)
    first.admit(10)
    first.add_bytes(900, "the body")

    assert supervisor.total(MODELS + QUEUED + 1) == 8000 and second.counters.total(MODELS + REQUESTS) == 1
    assert second.counters.total(BYTES) == 900
    with pytest.raises(Overloaded):
        second.add_bytes(200, "the body")
    supervisor.clear_row(0)
    second.add_bytes(200, "the body")
    assert supervisor.total(MODELS + QUEUED + 1) == 0 and supervisor.total(BYTES) == 200
    assert supervisor.total(MODELS + REQUESTS) == 0


def test_refusals_are_counted_by_reason_and_logged_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    controller = make_controller(max_queue_tokens=10)
    for _ in range(5):
        with pytest.raises(BodyTooLarge):
            controller.admit(11)

    families = collect_model_metrics(controller.counters, 0)
    refused = next(family for family in families if family.name == "cenote_requests_refused_total")
    assert {series.labels: series.value for series in refused.series}["request_tokens",] == 5
    assert len([record for record in caplog.records if "refused 1 requests" in record.getMessage()]) == 1


# engines that do not compute


def make_measured_server(load: float = 0.7) -> SimulatedServer:
    """A server of 2,000 tokens/s that has been in overload."""
    server = SimulatedServer(2000, 0.02)
    server.run(10, 10, 60)
    server.run(load, 30, 60)
    return server


def test_what_arrives_waits_for_another_engine_process_and_its_absence_does_not_count_as_slowness() -> None:
    server = make_measured_server()
    rate = server.rate.tokens_per_s

    server.lose_engine(seconds=10)
    lost, later = server.run(0.7, 10, 60), server.run(0.7, 60, 60)

    assert not lost.retry_after and not later.retry_after
    assert max(lost.latencies) > 10
    assert server.rate.tokens_per_s > 0.9 * rate


def test_the_queue_is_short_again_when_what_waited_for_an_engine_process_is_computed() -> None:
    server = make_measured_server()
    usual = server.limit
    server.lose_engine(seconds=6)
    server.run(0.7, 6, 60)

    server.run(0.7, 1, 60)
    assert server.limit > 6 * 1500
    server.run(0.7, 30, 60)
    assert server.limit == pytest.approx(usual, rel=0.2)


def test_in_overload_the_queue_is_short_again_a_minute_after_an_engine_process_was_replaced() -> None:
    server = make_measured_server()
    server.lose_engine(seconds=2)
    server.run(3, 2 + RECOVERY_S, 60)
    server.run(3, RECOVERY_S, 60)  # what has been admitted until then

    assert server.run(3, 10, 60).percentile(0.99) < 1.5


def test_an_engine_process_that_is_lost_again_and_again_has_time_to_recover_after_each() -> None:
    server = make_measured_server(load=0.3)

    for _ in range(15):
        server.lose_engine(seconds=1.5)
        assert not server.run(0.6, 6, 60).retry_after


@pytest.mark.parametrize("load", [0.35, 0.7])
def test_requests_wait_for_a_device_that_hangs_until_its_process_is_replaced(load: float) -> None:
    server = make_measured_server(load)
    rate = server.rate.tokens_per_s

    server.device_stops_until = server.now + 30
    hanging = server.run(load, 30, 60)
    server.lose_engine(seconds=2)
    replaced, later = server.run(load, 2, 60), server.run(load, 120, 60)

    assert not hanging.retry_after and not replaced.retry_after and not later.retry_after
    assert server.rate.tokens_per_s > 0.9 * rate
    server.run(10, 10, 60)
    assert server.run(10, 10, 60).percentile(0.99) < 1  # refused again: what waits is bounded


@pytest.mark.parametrize("max_queue_seconds", [None, 30.0])
def test_no_key_is_refused_at_a_third_of_the_capacity_while_a_device_hangs_and_is_replaced(
    max_queue_seconds: float | None,
) -> None:
    server = SimulatedServer(10_000, 0.004, max_queue_seconds=max_queue_seconds)
    server.keys = make_keys("a", "b", "c")

    def run(seconds: float) -> list[Outcome]:
        outcomes = [server.send_from(key, load, seconds, 400) for key, load in enumerate((0.15, 0.15, 0.05))]
        server.run_until(server.now + seconds)
        return outcomes

    run(30)
    server.device_stops_until = server.now + 30
    outcomes = run(30)
    server.lose_engine(seconds=2)
    outcomes += run(2) + run(60)

    assert not any(outcome.retry_after for outcome in outcomes)
    assert max(latency for outcome in outcomes for latency in outcome.latencies) > 30


def test_keys_within_their_shares_are_not_refused_while_a_device_hangs_and_another_key_floods_the_server() -> None:
    server = SimulatedServer(10_000, 0.004, max_queue_seconds=30)
    server.keys = make_keys("a", "b", "flood")
    server.run(0.35, 90, 400)

    server.device_stops_until = server.now + 30
    server.send_from(2, 3.0, 30, 400)
    outcomes = [server.send_from(key, 0.15, 30, 400) for key in (0, 1)]
    server.run_until(server.now + 60)

    assert not any(outcome.retry_after for outcome in outcomes)


def test_a_key_waits_beyond_its_share_while_the_engine_process_is_stopped() -> None:
    server = SimulatedServer(2000, 0.02)
    server.keys = make_keys("a", "b", "c")
    server.run(0.7, 30, 60)

    server.device_stops_until = server.now + 6

    assert not server.run(0.7, 6, 60).retry_after


def test_overload_of_a_slow_device_is_not_taken_for_a_hang() -> None:
    server = SimulatedServer(300, 0.05)
    server.run(3, 60, 300)

    assert server.run(3, 60, 300).percentile(0.99) < MIN_REQUESTS * 450 / 300 + 3


def test_front_ends_use_the_rate_that_the_supervisor_reports() -> None:
    fd = make_counters_file(2)
    controllers = [make_controller(counters=Counters(fd, 2, row)) for row in range(2)]
    for _ in range(MIN_REQUESTS):
        controllers[0].admit(1000)

    SpeedReport(0).write(Counters(fd, 2, row=None), 6000.0, 40_000.0)

    for _ in range(6):
        controllers[1].admit(4000, num_inputs=2)
    with pytest.raises(Overloaded, match="overloaded: 40000 tokens in flight, limit 40000; retry later"):
        controllers[1].admit(4000, num_inputs=2)
    assert controllers[0].is_overloaded is False and controllers[1].is_overloaded is True
