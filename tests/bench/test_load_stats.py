"""Statistics computed from request samples."""

from __future__ import annotations

import numpy as np
import pytest

from cenote.bench.load import RequestSample
from cenote.bench.load_stats import (
    MAX_ERROR_KINDS,
    ErrorCount,
    LoadRound,
    Percentiles,
    Ratio,
    compute_load_stats,
    min_cosine,
)


def test_percentiles_cover_successful_requests_only() -> None:
    good = [RequestSample(0.0, 0.0, seconds / 1000, 200) for seconds in range(1, 102)]
    refused = RequestSample(0.0, 0.0, 0.0001, 503, "busy")

    stats = compute_load_stats([LoadRound([*good, refused])])

    assert stats.latency_ms == Percentiles(*(pytest.approx(value) for value in (51, 91, 100, 51, 101)))
    assert (stats.requests, stats.ok, stats.failed) == (102, 101, 1)
    assert stats.seconds == pytest.approx(0.101)


def test_rounds_are_summed() -> None:
    first = LoadRound(
        [RequestSample(0, 0, 1.0, 200, items=4, tokens=40), RequestSample(0, 0, 2.0, 200, items=4, tokens=44)],
        cpu_s=1.0,
    )
    second = LoadRound([RequestSample(0, 0, 2.0, 200, items=4, tokens=36)], cpu_s=1.0, num_resent=3)

    stats = compute_load_stats([first, second])

    assert (stats.seconds, stats.items_per_s, stats.tokens_per_s) == (4.0, 3.0, 30.0)
    assert (stats.client_cpu, stats.resent) == (0.5, 3)


def test_a_server_that_reports_no_tokens_has_no_token_rate() -> None:
    assert compute_load_stats([LoadRound([RequestSample(0, 0, 1.0, 200, items=4)])]).tokens_per_s is None


def test_server_timing_is_a_fraction_of_the_service_time() -> None:
    timed = RequestSample(0.0, 0.9, 1.0, 200, timing_ms=(("queue", 25.0), ("inference", 50.0)))
    without_timing = RequestSample(0.0, 0.0, 9.0, 200)

    stats = compute_load_stats([LoadRound([timed, without_timing])])

    assert stats.server_timing_ms == {"queue": 25.0, "inference": 50.0}
    assert stats.server_timing_share == pytest.approx({"queue": 0.25, "inference": 0.5})


def test_rare_error_messages_are_merged() -> None:
    samples = [RequestSample(0, 0, 1, 500, f"failed in request {number}") for number in range(50)]

    stats = compute_load_stats(
        [LoadRound([*samples, RequestSample(0, 0, 1, None, "refused"), RequestSample(0, 0, 1, None, "refused")])]
    ).errors

    assert stats[0] == ErrorCount(None, "refused", 2)
    assert len(stats) == MAX_ERROR_KINDS + 1
    assert stats[-1] == ErrorCount(500, "other messages", 50 - (MAX_ERROR_KINDS - 1))


def test_a_round_without_requests_has_no_latency() -> None:
    stats = compute_load_stats([LoadRound([])])

    assert (stats.requests, stats.latency_ms, stats.errors) == (0, None, [])


def test_ratios_are_computed_per_round() -> None:
    assert Ratio.from_rounds([30.0, 20.0, 8.0], [10.0, 10.0, 2.0]) == Ratio(3.0, 2.0, 4.0)
    assert Ratio.from_rounds([30.0, 0.0], [10.0, 10.0]) is None


def test_agreement_is_the_minimum_cosine() -> None:
    vectors = np.array([[1, 0], [1, 1]], dtype=np.float32)

    assert min_cosine(vectors, np.array([[2, 0], [1, 0]], dtype=np.float32)) == pytest.approx(2**-0.5)
