"""Load generation: closed and open loop, arrival times, and error counts."""

from __future__ import annotations

import asyncio
import math
import time

import numpy as np
import pytest
import uvloop

from cenote.bench.backends import BACKENDS, encode_request
from cenote.bench.load import (
    PARSE_EVERY,
    EncodedRequest,
    LoadPattern,
    RequestSample,
    RequestSender,
    parse_server_timing,
    run_load,
)
from cenote.bench.load_stats import LoadRound, LoadStats, compute_load_stats
from cenote.utils.async_http_client import AsyncHttpClient, ServerAddress, encode_http_request
from tests.bench.stub import ReceivedRequest, StubServer, embed, reply


def run_load_on(load: LoadPattern, stub: StubServer, num_items: int = 2, timeout_s: float = 5) -> list[RequestSample]:
    async def run() -> list[RequestSample]:
        address = ServerAddress.from_url(stub.url)
        body = encode_request(
            BACKENDS["openai-embeddings"], ["a"] * num_items, model="m", encoding_format="float", extra={}
        )
        async with AsyncHttpClient(address, timeout_s=timeout_s) as client:
            message = encode_http_request("POST", address, "/v1/embeddings", body=body)
            sender = RequestSender(client, [EncodedRequest(message, num_items)])
            await run_load(sender, load)
        return sender.samples

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def measure_load(load: LoadPattern, stub: StubServer, num_items: int = 2) -> LoadStats:
    return compute_load_stats([LoadRound(run_load_on(load, stub, num_items))])


async def embed_in_20_ms(request: ReceivedRequest) -> bytes:
    await asyncio.sleep(0.02)
    return await embed(request)


def test_the_closed_loop_measures_the_latency_of_the_server() -> None:
    with StubServer(embed_in_20_ms) as stub:
        stats = measure_load(LoadPattern(4, num_requests=40), stub)

    assert (stats.requests, stats.ok, stats.failed, len(stub.post_requests)) == (40, 40, 0, 40)
    assert stub.max_in_flight == stub.num_connections == 4
    assert stats.latency_ms is not None and 20 <= stats.latency_ms.p50 <= 100
    assert 0.2 <= stats.seconds <= 2  # ten rounds of 20 ms
    assert stats.requests_per_s == pytest.approx(40 / stats.seconds)
    assert stats.items_per_s == pytest.approx(80 / stats.seconds)
    assert stats.tokens_per_s == pytest.approx(40 * 14 / stats.seconds)
    assert stats.offered_per_s is None


def test_shares_of_a_load_add_up_to_it() -> None:
    load = LoadPattern(10, num_requests=1001, seed=7)

    shares = [load.split_share(number, 4) for number in range(4)]

    assert sum(share.num_requests or 0 for share in shares) == 1001
    assert [share.concurrency for share in shares] == [3, 3, 2, 2]
    assert len({share.seed for share in shares}) == 4
    assert LoadPattern(None, rate=100, num_requests=8).split_share(0, 4).rate == 25


def test_a_response_of_the_size_of_a_valid_one_is_rarely_parsed_and_any_other_always() -> None:
    bad_length, bad_content = [False], [False]

    async def handle(request: ReceivedRequest) -> bytes:
        if bad_length[0]:
            return await _one_item_short(request)
        good = await embed(request)
        return good[: -len(b"{}}")] + b"???" if bad_content[0] else good

    with StubServer(handle) as stub:
        assert measure_load(LoadPattern(1, num_requests=20), stub).failed == 0
        bad_content[0] = True
        assert (
            measure_load(LoadPattern(1, num_requests=PARSE_EVERY + 1), stub).failed >= 1
        )  # the first and one in PARSE_EVERY
        bad_length[0] = True
        assert measure_load(LoadPattern(1, num_requests=5), stub).failed == 5


def test_a_duration_ends_the_closed_loop() -> None:
    with StubServer(embed_in_20_ms) as stub:
        stats = measure_load(LoadPattern(2, num_requests=None, duration_s=0.3), stub)

    assert 0.29 <= stats.seconds <= 1
    assert stats.ok == len(stub.post_requests) <= 30


def test_the_open_loop_sends_while_the_server_stalls() -> None:
    async def stall(request: ReceivedRequest) -> bytes:
        await asyncio.sleep(max(0.0, stub.post_requests[0].at + 0.5 - time.perf_counter()))
        return await embed(request)

    load = LoadPattern(None, rate=100, burstiness=1e6, num_requests=40)  # nearly regular, every 10 ms
    with StubServer(stall) as stub:
        samples = run_load_on(load, stub)

    assert stub.max_in_flight >= 30  # requests are sent without waiting for responses
    late = [sample.sent - sample.due for sample in samples]
    assert min(late) >= 0 and np.median(late) < 0.1
    first, *_, last = sorted(samples, key=lambda sample: sample.due)
    assert (first.due, last.due) == (0.0, pytest.approx(0.39, abs=0.01))
    assert first.latency >= 0.45
    assert last.latency <= first.latency - 0.2  # the stall was nearly over when it was due


def test_latency_includes_the_time_a_due_request_waits_in_the_client() -> None:
    async def stall_once(request: ReceivedRequest) -> bytes:
        if len(stub.post_requests) == 1:
            await asyncio.sleep(0.5)
        return await embed(request)

    load = LoadPattern(None, rate=100, burstiness=1e6, num_requests=40, max_concurrency=1)
    with StubServer(stall_once) as stub:
        stats = measure_load(load, stub)

    assert stub.max_in_flight == 1
    assert stats.service_ms is not None and stats.service_ms.p50 < 100  # only the first request was slow in the server
    assert stats.latency_ms is not None and stats.latency_ms.p50 > 200  # the others waited in the client
    assert stats.offered_per_s == pytest.approx(40 / 0.39, rel=0.01)


def test_arrivals_are_poisson_unless_burstiness_is_higher() -> None:
    gaps = {
        shape: np.diff(list(LoadPattern(None, rate=50, burstiness=shape, num_requests=4000, seed=1).arrival_times()))
        for shape in (0.25, 1.0, 100.0)
    }

    for shape, stats in gaps.items():
        assert stats.mean() == pytest.approx(1 / 50, rel=0.1)
        assert stats.std() / stats.mean() == pytest.approx(shape**-0.5, rel=0.15)


def test_arrivals_end_with_the_duration_and_may_all_be_at_once() -> None:
    within = list(LoadPattern(None, rate=100, num_requests=None, duration_s=2).arrival_times())

    assert 150 <= len(within) <= 250 and max(within) < 2
    assert list(LoadPattern(None, rate=math.inf, num_requests=5).arrival_times()) == [0.0] * 5


def test_errors_are_counted_by_status_and_text() -> None:
    async def refuse_some(request: ReceivedRequest) -> bytes:
        number = len(stub.post_requests) % 4
        if number == 1:
            return reply({"error": {"message": "queue full", "code": 429}}, 429)
        if number == 2:
            return reply({"detail": [{"loc": ["body"]}]}, 422)
        return reply(b"<html>down\n for today</html>", 503) if number == 3 else await embed(request)

    with StubServer(refuse_some) as stub:
        stats = measure_load(LoadPattern(1, num_requests=40), stub)

    assert (stats.ok, stats.failed) == (10, 30)
    assert {(entry.status, entry.error, entry.count) for entry in stats.errors} == {
        (429, "queue full", 10),
        (422, '[{"loc":["body"]}]', 10),
        (503, "<html>down for today</html>", 10),
    }


def test_a_response_with_too_few_results_is_a_failure() -> None:
    with StubServer(embed) as stub:
        stub.handler = _one_item_short
        stats = measure_load(LoadPattern(1, num_requests=3), stub, num_items=4)

    assert [(entry.status, entry.error, entry.count) for entry in stats.errors] == [
        (200, "got 3 results for 4 inputs", 3)
    ]
    assert stats.items_per_s == 0 and stats.latency_ms is None


async def _one_item_short(request: ReceivedRequest) -> bytes:
    request.body["input"].pop()
    return await embed(request)


def test_a_response_that_is_not_json_is_a_failure() -> None:
    async def invalid_json(request: ReceivedRequest) -> bytes:
        return reply(b"\xff{")

    with StubServer(invalid_json) as stub:
        (sample,) = run_load_on(LoadPattern(1, num_requests=1), stub)

    assert sample.status == 200 and sample.error is not None and "cannot decode" in sample.error


def test_connection_errors_and_timeouts_are_counted() -> None:
    async def never(request: ReceivedRequest) -> bytes:
        await asyncio.sleep(10)
        return b""

    with StubServer(never) as stub:
        timed_out = run_load_on(LoadPattern(2, num_requests=4), stub, timeout_s=0.05)
    refused = run_load_on(LoadPattern(2, num_requests=4), stub)

    assert [(entry.status, entry.error) for entry in timed_out] == [(None, "timed out after 0.05 s")] * 4
    assert all(0.04 <= entry.latency < 2 for entry in timed_out)
    assert [(entry.status, entry.error) for entry in refused] == [(None, "connection refused")] * 4


def test_server_timing_is_parsed_in_all_its_forms() -> None:
    header = 'queue;dur=1.5, tokenize; dur="0.25" , cache;desc="hit", inference;desc=x;dur=7, broken;dur=soon'

    assert parse_server_timing(header) == (("queue", 1.5), ("tokenize", 0.25), ("inference", 7.0))
    assert parse_server_timing("") == ()
