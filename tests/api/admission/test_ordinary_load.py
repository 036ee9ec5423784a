"""AdmissionController: clients that send one request after the other are not refused, on fast and on slow devices."""

from __future__ import annotations

from typing import Any

import pytest

from cenote.api.admission.controller import MAX_FEW_REQUESTS, MIN_REQUESTS
from cenote.api.admission.counters import MODELS, QUEUED, TENANT_MINUTE_TOKENS, TENANTS
from cenote.api.api_keys import parse_key_lines
from cenote.engine.throughput import EngineRate
from cenote.errors import Overloaded

from .simulated_server import SimulatedServer

CONNECTIONS, TOKENS, ESTIMATE_FACTOR = 256, 48, 1.6


def make_gpu() -> SimulatedServer:
    """A device of 2.9 million tokens/s behind front-ends of 16,000 requests/s."""
    server = SimulatedServer(2_900_000, 0.002, request_overhead_s=1 / 16_000)
    server.batch_tokens = 65_536
    server.rate = EngineRate(1_500_000.0)  # of its warm-up
    return server


def make_cpu() -> SimulatedServer:
    """The default model on two cores."""
    server = SimulatedServer(12_000, 0.004, request_overhead_s=0.0005)
    server.batch_tokens = 4096
    return server


DEVICES = pytest.mark.parametrize("make_server", [make_gpu, make_cpu], ids=["GPU", "CPU"])


@DEVICES
@pytest.mark.parametrize("before", ["nothing", "an idle hour", "one request per second", "four clients", "overload"])
def test_clients_with_a_short_text_each_are_not_refused(make_server: Any, before: str) -> None:
    server: SimulatedServer = make_server()
    server.estimate_factor = ESTIMATE_FACTOR
    if before == "one request per second":
        server.run_clients(1, 60, 12, pause_s=1.0)
    elif before == "four clients":
        server.run_clients(4, 10, 12)
    elif before == "overload":
        assert server.run_clients(4000, 3, 600).retry_after
        server.now += 2
    elif before == "an idle hour":
        server.run_clients(64, 2, TOKENS)
        server.now += 3600

    outcome = server.run_clients(CONNECTIONS, 3, TOKENS)

    assert not outcome.retry_after
    assert len(outcome.latencies) >= CONNECTIONS


def test_clients_with_a_text_of_up_to_512_tokens_each_are_not_refused_by_a_slow_cpu() -> None:
    server = SimulatedServer(2900, 0.004, request_overhead_s=0.0005)
    server.estimate_factor = ESTIMATE_FACTOR

    def draw_length() -> int:
        return min(512, round(server.random.lognormvariate(3.6, 0.8)))

    server.run_clients(1, 3, draw_length)
    outcome = server.run_clients(64, 20, draw_length)

    assert not outcome.retry_after
    assert outcome.tokens > 15 * 2900


@pytest.mark.parametrize("load", [1.2, 2, 10])
def test_texts_of_medium_length_are_refused_before_they_wait_long(load: float) -> None:
    server = make_cpu()
    server.run(0.7, 60, 300)

    outcome = server.run(load, 60, 300)

    assert outcome.percentile(0.99) < 1
    assert outcome.tokens > 0.9 * 60 * server.tokens_per_s


def test_requests_of_a_full_batch_are_admitted_after_tiny_ones_on_a_gpu() -> None:
    server = make_gpu()
    server.run_clients(1, 1, 4)
    server.batch_tokens = 256  # as what arrives together
    server.run_clients(CONNECTIONS, 2, 4)
    server.batch_tokens = 65_536
    assert not server.run_clients(64, 1, 3000).retry_after


def test_few_clients_do_not_lower_the_measured_rate() -> None:
    server = make_cpu()
    server.run(10, 5, 60)
    server.run(0.001, 3, 10)  # until nothing is in flight
    measured = server.rate.tokens_per_s

    server.run_clients(2, 30, 12)

    assert server.rate.tokens_per_s >= measured > 6000


def test_a_request_that_waits_for_a_slow_disk_does_not_make_an_idle_server_look_slow() -> None:
    server = SimulatedServer(20_000, 0.004)
    server.run(10, 20, 25)  # until its speed is known
    server.run(0.001, 3, 10)
    measured = server.rate.tokens_per_s
    waiting = server.controller.admit(50)

    outcome = server.run(0.02, 60, 25)

    assert not outcome.retry_after
    assert server.rate.tokens_per_s == measured > 15_000
    waiting.release(is_completed=True)


def test_a_slow_device_refuses_what_takes_more_than_ten_seconds() -> None:
    server = SimulatedServer(300, 0.05)
    server.run_clients(8, 30, 60)  # until its speed is known

    outcome = server.run_clients(CONNECTIONS, 30, 60)

    assert outcome.retry_after
    assert outcome.percentile(0.99) < 11


def test_all_connections_of_a_gpu_that_is_faster_than_its_front_ends_are_answered_soon() -> None:
    outcome = make_gpu().run_clients(4096, 1, 12)

    assert not outcome.retry_after
    assert outcome.percentile(0.99) < 0.5


@pytest.mark.parametrize(
    ("tokens", "num_inputs", "num_admitted"),
    [
        (40, 1, MAX_FEW_REQUESTS),
        (100, 1, 10 * 2000 // 100),
        (40, 2, 2000 // 40),
        (128, 1, 10 * 2000 // 128),
        (129, 1, 8192 // 129),
        (1024, 1, MIN_REQUESTS),
        (1025, 1, MIN_REQUESTS),
        (190, 2, MIN_REQUESTS),
        (600, 2, MIN_REQUESTS),
    ],
    ids=[
        "short",
        "many tokens",
        "two texts",
        "longest short",
        "medium",
        "longest medium",
        "long",
        "two medium",
        "two long",
    ],
)
def test_single_short_texts_of_few_clients_may_fill_more_than_a_second(
    tokens: int, num_inputs: int, num_admitted: int
) -> None:
    server = SimulatedServer(2000, 0.0)
    server.run(10, 20, 60)  # until its speed is known
    server.run(0.001, 3, 10)
    controller = server.controller
    assert server.rate.tokens_per_s == pytest.approx(2000, rel=0.02)

    tickets = []
    with pytest.raises(Overloaded):
        while True:
            tickets.append(controller.admit(tokens, num_inputs=num_inputs))

    assert len(tickets) == pytest.approx(num_admitted, abs=1)


def test_a_request_changes_its_lane_when_its_tokens_are_fewer_than_estimated() -> None:
    server = SimulatedServer(2000, 0.02)
    (key,) = keys = parse_key_lines([b"a"])
    controller = server.controller
    own, column = controller.counters.own, controller.tenants.find_column(key, keys)
    ticket = controller.admit(5000, None, key, keys)
    assert (ticket.lane, own[MODELS + QUEUED + 1], own[column + 1]) == ("bulk", 5000, 5000)

    assert ticket.set_tokens(4096) == "interactive"

    assert (own[MODELS + QUEUED], own[MODELS + QUEUED + 1]) == (4096, 0)
    assert (own[column], own[column + 1], own[controller.requests]) == (4096, 0, 1)
    ticket.release(is_completed=True)
    assert (own[MODELS + QUEUED], own[column], own[controller.requests]) == (0, 0, 0)


@pytest.mark.parametrize(("lane", "tokens"), [("bulk", 100), (None, 4097)])
def test_a_request_keeps_the_lane_that_it_names_or_needs(lane: Any, tokens: int) -> None:
    ticket = SimulatedServer(2000, 0.02).controller.admit(5000, lane)

    assert ticket.set_tokens(tokens) == "bulk"


def test_true_counts_replace_estimates_as_soon_as_they_are_known() -> None:
    server = SimulatedServer(2000, 0.02)
    (key,) = keys = parse_key_lines([b"a max-tokens-per-minute=1000"])
    controller = server.controller
    counters, column = controller.counters, controller.tenants.find_column(key, keys)
    assert column >= TENANTS
    ticket = controller.admit(100, None, key, keys)

    ticket.set_tokens(60)

    assert counters.total(MODELS + QUEUED) == counters.total(column) == 60
    assert counters.total(column + TENANT_MINUTE_TOKENS) == 60
    ticket.release(is_completed=True)
    ticket.set_tokens(90)
    assert counters.total(MODELS + QUEUED) == counters.total(column) == 0
