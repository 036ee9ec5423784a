"""The simulation of replicas: against the formulas of queueing theory, and its fit of service times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cenote.bench.load import LoadPattern
from cenote.errors import BadRequest
from lab.simulate.__main__ import main
from lab.simulate.measure import mean_others
from lab.simulate.routing import POLICIES, SimulatedRequest, make_policy, make_requests, make_trace
from lab.simulate.service_time import LoadWindow, ServiceTime, fit_service_time, relative_errors
from lab.simulate.simulation import ReplicaSettings, SimulationResult, simulate

ONE_AT_A_TIME = ReplicaSettings(max_batch_sequences=1)
SERVICE_S = 0.01


def run_queue(load: float, factors: tuple[float, ...], num_requests: int = 60_000) -> SimulationResult:
    """One replica without batching, at a share of its capacity."""
    pattern = LoadPattern(None, rate=load / SERVICE_S, num_requests=num_requests, seed=1)
    service = ServiceTime(SERVICE_S, 0.0, 0.0, factors=factors)
    requests = make_requests(pattern, mean_tokens=10, sigma=0)
    return simulate(requests, service, make_policy("round-robin", 0), num_replicas=1, settings=ONE_AT_A_TIME)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_replica_with_exponential_times_is_the_queue_m_m_1(load: float) -> None:
    exponential = tuple(-np.log(1 - (np.arange(4000) + 0.5) / 4000))

    result = run_queue(load, exponential)

    assert result.latencies_s.mean() == pytest.approx(SERVICE_S / (1 - load), rel=0.06)
    assert result.percentile_ms(99) == pytest.approx(1e3 * np.log(100) * SERVICE_S / (1 - load), rel=0.1)
    assert result.busy == pytest.approx(load, rel=0.03)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_replica_with_constant_times_is_the_queue_m_d_1(load: float) -> None:
    result = run_queue(load, (1.0,))

    assert result.latencies_s.mean() == pytest.approx(SERVICE_S * (1 + load / (2 * (1 - load))), rel=0.05)
    assert result.latencies_s.min() >= SERVICE_S - 1e-9


def test_overload_is_limited_by_the_speed_of_full_batches() -> None:
    service = ServiceTime(batch_s=0.001, sequence_s=0.0, token_s=1e-5)
    requests = make_requests(LoadPattern(None, rate=1e5, num_requests=20_000), mean_tokens=50, sigma=0)
    settings = ReplicaSettings(max_batch_tokens=5000)

    result = simulate(requests, service, make_policy("round-robin", 0), num_replicas=2, settings=settings)

    assert result.tokens_per_s == pytest.approx(2 * service.tokens_per_s(100, 5000), rel=0.02)
    assert result.num_batches == pytest.approx(20_000 / 100, abs=4)


def test_the_same_seed_has_the_same_result_and_another_one_differs() -> None:
    def run(seed: int) -> list[float]:
        pattern = LoadPattern(None, rate=500, num_requests=500, seed=seed)
        requests = make_requests(pattern, mean_tokens=50, sigma=0.8)
        service = ServiceTime(0.001, 0.0, 1e-4, factors=(0.5, 1.0, 1.5))
        policy = make_policy("two-choices", seed)
        return list(simulate(requests, service, policy, num_replicas=3, seed=seed).latencies_s)

    assert run(1) == run(1) != run(2)


def test_fewest_tokens_has_a_shorter_tail_than_round_robin_and_random() -> None:
    pattern = LoadPattern(None, rate=70, num_requests=4000)
    requests = make_requests(pattern, mean_tokens=100, sigma=1.5)
    service = ServiceTime(0.001, 0.0, 4e-4)
    tails = {
        name: simulate(requests, service, make_policy(name, 0), num_replicas=4, settings=ONE_AT_A_TIME).percentile_ms(
            99
        )
        for name in POLICIES
    }

    assert tails["least-tokens"] < tails["two-choices"] < tails["random"]
    assert tails["least-tokens"] < 0.8 * tails["round-robin"]


def test_cache_aware_routing_finds_more_results() -> None:
    pattern = LoadPattern(None, rate=1000, num_requests=5000)
    requests = make_requests(pattern, mean_tokens=50, sigma=0.5, num_contents=1000)
    settings = ReplicaSettings(cache_entries=150)
    service = ServiceTime(0.0001, 0.0, 1e-6)
    hits = {
        name: simulate(requests, service, make_policy(name, 0), num_replicas=4, settings=settings).cache_hits
        for name in ("cache-aware", "round-robin")
    }

    assert hits["cache-aware"] > 1.2 * hits["round-robin"] > 0


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_uses_all_replicas(name: str) -> None:
    requests = [SimulatedRequest(index * 1e-4, 50, index) for index in range(400)]
    result = simulate(requests, ServiceTime(0.01, 0.0, 0.0), make_policy(name, 0), num_replicas=4)

    assert result.busy > 0.8


def test_a_fit_finds_the_coefficients_of_exact_windows(tmp_path: Path) -> None:
    true = ServiceTime(0.002, 0.0001, 5e-6)
    sizes = [(10, 10, 300), (10, 40, 2000), (5, 80, 9000), (20, 20, 4000)]
    windows = [
        LoadWindow(batches, sequences, tokens, 0.002 * batches + 0.0001 * sequences + 5e-6 * tokens)
        for batches, sequences, tokens in sizes
    ]

    fitted = fit_service_time(windows, overhead_s=0.003, factors=(0.9, 1.1))

    assert (fitted.batch_s, fitted.sequence_s, fitted.token_s) == pytest.approx((0.002, 0.0001, 5e-6))
    assert relative_errors(fitted, windows) == pytest.approx([0.0] * 4, abs=1e-9)
    assert fitted.tokens_per_s(64, 4096) == pytest.approx(true.tokens_per_s(64, 4096))
    fitted.write(tmp_path / "service.json")
    assert ServiceTime.read(tmp_path / "service.json") == fitted


def test_a_fit_has_no_negative_coefficients() -> None:
    windows = [LoadWindow(10, 10, 100 * n, 0.001 * n) for n in range(1, 5)]

    fitted = fit_service_time(windows, 0.0)

    assert min(fitted.batch_s, fitted.sequence_s, fitted.token_s) >= 0
    assert fitted.token_s == pytest.approx(1e-5)
    with pytest.raises(BadRequest, match="at least 3"):
        fit_service_time(windows[:2], 0.0)


def test_a_fit_finds_how_much_replicas_slow_each_other_down() -> None:
    true = ServiceTime(0.002, 0.0, 5e-6, contention=0.3)
    sizes = [(10, 10, 300, 0.0), (10, 40, 2000, 0.0), (5, 80, 9000, 0.9), (20, 20, 4000, 0.4)]
    windows = [
        LoadWindow(batches, sequences, tokens, true.expected_s(sequences, tokens, others, batches), others)
        for batches, sequences, tokens, others in sizes
    ]

    fitted = fit_service_time(windows, 0.0)

    assert (fitted.batch_s, fitted.token_s, fitted.contention) == pytest.approx((0.002, 5e-6, 0.3), rel=1e-3)


def test_replicas_that_share_cores_compute_less_together() -> None:
    requests = make_requests(LoadPattern(None, rate=1e4, num_requests=2000), mean_tokens=50, sigma=0)
    speeds = [
        simulate(
            requests,
            ServiceTime(0.001, 0.0, 0.0, contention=contention),
            make_policy("round-robin", 0),
            num_replicas=2,
            settings=ONE_AT_A_TIME,
        ).requests_per_s
        for contention in (0.0, 0.5)
    ]

    assert speeds == [pytest.approx(2000, rel=0.01), pytest.approx(2000 / 1.5, rel=0.01)]


def test_the_time_between_batches_is_that_of_replicas_for_which_requests_wait() -> None:
    windows = [
        LoadWindow(10, 10, 300, 0.5),
        LoadWindow(10, 40, 2000, 0.9, waiting_s=1.0),
        LoadWindow(20, 80, 9000, 1.4, waiting_s=2.0),
    ]

    assert fit_service_time(windows, 0.0).gap_s == pytest.approx(0.02)
    assert fit_service_time([replace(window, waiting_s=None) for window in windows], 0.0).gap_s == 0.0


def test_a_replica_computes_less_with_time_between_batches_and_a_single_request_takes_as_long() -> None:
    requests = make_requests(LoadPattern(None, rate=1e4, num_requests=1000), mean_tokens=50, sigma=0)
    service = ServiceTime(0.003, 0.0, 0.0, overhead_s=0.002, gap_s=0.001)

    busy = simulate(requests, service, make_policy("round-robin", 0), num_replicas=1, settings=ONE_AT_A_TIME)
    alone = simulate(requests[:1], service, make_policy("round-robin", 0), num_replicas=1)

    assert busy.requests_per_s == pytest.approx(250, rel=0.01)
    assert alone.latencies_s == pytest.approx([0.005])


def test_other_replicas_count_as_far_as_they_compute() -> None:
    assert mean_others(mean_busy=0.8, max_busy=1) == 0.0
    assert mean_others(mean_busy=1.5, max_busy=2) == pytest.approx(0.75)
    assert mean_others(mean_busy=2.1, max_busy=2) == 1.0


def test_a_trace_repeats_the_texts_of_a_load_test() -> None:
    load = LoadPattern(None, rate=10, num_requests=5)

    assert [request.tokens for request in make_trace(load, [7, 8])] == [7, 8, 7, 8, 7]
    assert [request.arrival_s for request in make_trace(load, [7])] == list(load.arrival_times())


def test_the_command_prints_every_policy(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--rate", "1000", "--duration", "0.5", "--replicas", "3"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in POLICIES)

    (tmp_path / "broken.json").write_text("{}")
    assert main(["--service", str(tmp_path / "broken.json")]) == 1
    assert "is not a service time" in capsys.readouterr().err
