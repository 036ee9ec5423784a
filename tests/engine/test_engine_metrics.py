"""Metrics of the engine and the timing of requests."""

from __future__ import annotations

import asyncio
import time

import pytest

from cenote.errors import PoolingError
from cenote.protocol.params import TokenizationParams
from cenote.protocol.requests import ScoreRequest, Timing
from tests.engine.conftest import BatchGate, MakeEngine, make_request, raise_on_tokens, wait_until
from tests.engine.metric_values import get_series, get_value


def test_tokens_inputs_and_outcomes_are_counted_exactly(make_engine: MakeEngine) -> None:
    engine = make_engine(fault=raise_on_tokens(666))
    engine.pool_sync(make_request([[1, 2, 3], [4, 5]]))
    with pytest.raises(PoolingError):
        engine.pool_sync(make_request([[666]]))

    wait_until(lambda: get_value(engine, "cenote_requests_total", "failed") == 1)
    assert get_value(engine, "cenote_requests_total", "answered") == 1
    assert get_value(engine, "cenote_prompt_tokens_total") == 5
    assert get_value(engine, "cenote_inputs_total") == 2
    assert sum(get_series(engine, "cenote_request_duration_seconds")[0].counts) == 1  # of successful requests


def test_prompt_tokens_are_those_that_the_model_has_read(make_engine: MakeEngine) -> None:
    engine = make_engine(fault=raise_on_tokens(666), result_cache_bytes=1 << 20)
    for inputs in ([[1, 2, 3], [1, 2, 3], [4]], [[4], [5, 6]], [[666, 7], [8]]):
        engine.pool_sync(make_request(inputs, return_exceptions=True))

    assert get_value(engine, "cenote_prompt_tokens_total") == 3 + 1 + 2 + 1
    assert get_value(engine, "cenote_deduplicated_tokens_total") == 3
    assert get_value(engine, "cenote_cached_tokens_total") == 1
    assert get_value(engine, "cenote_inputs_total") == 7  # with the failed one, which has an error as its result


def test_requests_that_are_not_admitted_count_as_refused(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for request in (make_request([]), make_request([[1]], adapter="none")):
        with pytest.raises(PoolingError):
            asyncio.run(engine.pool(request))

    assert get_value(engine, "cenote_requests_total", "refused") == 2
    assert get_value(engine, "cenote_requests_total", "answered") == 0


def test_every_queue_has_a_length(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate)
    states = [engine.submit(make_request([[1]]))]
    assert gate.reached.wait(20)
    states += [engine.submit(make_request(inputs)) for inputs in ([[2], [3, 4]], [[2]])]
    wait_until(lambda: get_value(engine, "cenote_queue_length", "duplicates") == 1)

    assert get_value(engine, "cenote_queue_length", "scheduler") == 2
    assert {series.labels for series in get_series(engine, "cenote_queue_length")} >= {("tokenizer",), ("images",)}
    gate.opened.set()
    for state in states:
        state.wait()
    assert get_value(engine, "cenote_queue_length", "scheduler") == 0


def test_a_truncated_input_is_counted(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.pool_sync(make_request([[1, 2, 3], [4]], tokenization=TokenizationParams(truncate_prompt_tokens=2)))

    assert get_value(engine, "cenote_truncated_inputs_total") == 1


def test_a_request_is_counted_as_waiting_then_running_then_not_at_all(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate, max_num_batched_tokens=4)
    first = engine.submit(make_request([[1, 2, 3]]))
    assert gate.reached.wait(20)
    second = engine.submit(make_request([[1, 2, 3]]))

    assert get_value(engine, "cenote_requests_running") == 1
    assert get_value(engine, "cenote_requests_waiting") == 1
    time.sleep(0.01)
    assert get_value(engine, "cenote_queue_oldest_seconds") >= 0.01
    gate.opened.set()
    first.wait(), second.wait()
    assert get_value(engine, "cenote_requests_running") == get_value(engine, "cenote_requests_waiting") == 0
    assert get_value(engine, "cenote_queue_oldest_seconds") == 0


def test_a_cancelled_request_is_counted_as_cancelled(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate)
    state = engine.submit(make_request([[1, 2, 3]]))
    state.future.cancel()
    gate.opened.set()

    wait_until(lambda: get_value(engine, "cenote_requests_total", "cancelled") == 1)


async def test_the_time_of_a_request_is_split_into_its_parts(make_engine: MakeEngine) -> None:
    engine = make_engine(fault=lambda batch: time.sleep(0.05), max_num_seqs=1)
    first, second = Timing(), Timing()

    started_at = time.monotonic()
    await asyncio.gather(
        engine.pool(make_request(["hello world"], timing=first)),
        engine.pool(make_request(["hello there"], timing=second)),
    )
    elapsed_s = time.monotonic() - started_at
    assert first.inference_s >= 0.05
    assert second.queue_s >= 0.04  # it waited for the first
    assert 0 < first.tokenize_s < elapsed_s
    assert second.queue_s + second.tokenize_s + second.inference_s <= elapsed_s + 0.01
    for timing in (first, second):
        assert timing.device_s >= 0.05 and timing.pack_s >= 0 and timing.deliver_s >= 0
        assert timing.pack_s + timing.device_s + timing.deliver_s >= timing.inference_s - 1e-6
    # counted by the engine thread after it has passed the results on
    wait_until(lambda: get_value(engine, "cenote_device_seconds_total") >= 0.1)  # two batches
    assert get_value(engine, "cenote_device_seconds_total") <= elapsed_s


def test_a_score_request_gets_its_timing(make_engine: MakeEngine) -> None:
    engine, timing = make_engine(), Timing()
    engine.score_sync(ScoreRequest(queries=["a b"], documents=["c d"], score_type="bi-encoder", timing=timing))

    assert timing.tokenize_s > 0
