"""The engine as callers see it: order of results, fairness, bounded queues, rejected requests."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cenote.engine.preprocessing.tokenizer_worker import MAX_QUEUED_BATCHES, MIN_SLICE_TOKENS
from cenote.engine.sequence_group import ScheduledBatch
from cenote.errors import BadRequest, Overloaded
from cenote.inputs.renderer import Renderer
from cenote.protocol.input_types import TextPair
from cenote.protocol.params import TokenizationParams
from cenote.protocol.requests import ScoreRequest
from cenote.protocol.scheduling import SchedulingParams
from tests.engine.conftest import BatchGate, MakeEngine, echoed_token_ids, make_request, wait_until


def random_inputs(seed: int, count: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(30000) for _ in range(rng.randint(1, 40))] for _ in range(count)]


def test_results_come_in_the_order_of_the_inputs(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_batched_tokens=100, max_num_seqs=7)
    inputs = random_inputs(0, 700)  # several slices, many batches

    assert echoed_token_ids(engine.pool_sync(make_request(inputs))) == inputs


def test_concurrent_threads_each_get_their_own_results(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_batched_tokens=300)

    def call(seed: int) -> bool:
        inputs = random_inputs(seed, 30)
        return echoed_token_ids(engine.pool_sync(make_request(inputs))) == inputs

    with ThreadPoolExecutor(16) as callers:
        assert all(callers.map(call, range(120)))


async def test_concurrent_asyncio_tasks_each_get_their_own_results(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_batched_tokens=300)

    async def call(seed: int) -> bool:
        inputs = random_inputs(seed, 1 + seed % 20)
        return echoed_token_ids(await engine.pool(make_request(inputs))) == inputs

    result = await asyncio.gather(*map(call, range(200)))

    assert all(result)


async def test_requests_tokenized_together_keep_their_own_results_errors_and_options(make_engine: MakeEngine) -> None:
    engine = make_engine()

    async def call(number: int) -> bool:
        tokenization = TokenizationParams(truncate_prompt_tokens=3) if number % 3 == 0 else TokenizationParams()
        is_invalid = number % 5 == 0
        request = make_request(["a " * (1 + number % 4), "\ud800" if is_invalid else "b"], tokenization=tokenization)
        try:
            first, second = echoed_token_ids(await engine.pool(request))
        except BadRequest as error:
            return is_invalid and error.index == 1
        length = 3 if number % 3 == 0 else 3 + number % 4
        return not is_invalid and len(first) == length and second == [101, 1038, 102]

    result = await asyncio.gather(*map(call, range(200)))

    assert all(result)


def test_texts_and_token_ids_can_be_mixed_in_one_request(make_engine: MakeEngine) -> None:
    engine = make_engine()

    results = echoed_token_ids(engine.pool_sync(make_request(["a", [7, 8], "", TextPair("a", "b")])))

    assert results == [[101, 1037, 102], [7, 8], [101, 102], [101, 1037, 102, 1038, 102]]


# errors of single inputs


@pytest.mark.parametrize("bad", ["\ud800", [-1], [], [5] * 300], ids=ascii)
def test_one_bad_input_fails_its_request(make_engine: MakeEngine, bad: object) -> None:
    engine = make_engine()

    with pytest.raises(BadRequest):
        engine.pool_sync(make_request(["a", bad, "b"]))

    assert echoed_token_ids(engine.pool_sync(make_request([[7]]))) == [[7]]


def test_with_return_exceptions_the_error_is_in_the_result_list(make_engine: MakeEngine) -> None:
    results = echoed_token_ids(
        make_engine().pool_sync(make_request(["a", "\ud800", [7], [-1]], return_exceptions=True))
    )

    assert results[0] == [101, 1037, 102]
    assert isinstance(results[1], BadRequest)
    assert results[2] == [7]
    assert isinstance(results[3], BadRequest)


def test_with_return_exceptions_every_input_may_fail(make_engine: MakeEngine) -> None:
    results = echoed_token_ids(make_engine().pool_sync(make_request([[-1]] * 600, return_exceptions=True)))

    assert all(isinstance(result, BadRequest) for result in results)


# queues


def test_texts_are_tokenized_while_a_batch_runs(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate)
    first = engine.submit(make_request([[7]]))
    assert gate.reached.wait(10)

    second = engine.submit(make_request([[2000 + number, 5, 6, 7, 8] for number in range(1000)]))
    wait_until(lambda: engine.core.loop.scheduler.num_waiting_tokens == 5000)

    assert not first.future.done()
    gate.opened.set()
    assert len(second.wait()) == 1000


def test_the_number_of_queued_tokens_is_bounded(make_engine: MakeEngine) -> None:
    max_queued = 0

    def slow(batch: ScheduledBatch) -> None:
        nonlocal max_queued
        max_queued = max(max_queued, engine.core.loop.scheduler.num_waiting_tokens)
        time.sleep(0.001)

    engine = make_engine(fault=slow, max_num_batched_tokens=512)
    inputs = [[number, number + 1, number + 2, 4, 5, 6] for number in range(20_000)]

    results = engine.pool_sync(make_request(inputs))

    assert echoed_token_ids(results) == inputs
    assert 512 < max_queued <= MAX_QUEUED_BATCHES * 512 + MIN_SLICE_TOKENS


def test_a_small_request_does_not_wait_for_the_whole_of_a_large_one(make_engine: MakeEngine) -> None:
    engine = make_engine(fault=lambda batch: time.sleep(0.002), max_num_batched_tokens=256)
    large = engine.submit(make_request([[5] * 16] * 20_000))  # more than a thousand batches

    started_at = time.monotonic()
    engine.submit(make_request([[7]])).wait()

    assert not large.future.done()
    assert large.num_done < 20_000 / 2
    assert time.monotonic() - started_at < 5
    large.future.cancel()


def test_with_the_priority_policy_urgent_requests_run_first(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate, scheduling_policy="priority", max_num_batched_tokens=4)
    waiting = [engine.submit(make_request([[9]]))]
    assert gate.reached.wait(10)
    for number, priority in ((1, 5), (2, 0), (3, -5), (4, 0)):
        waiting.append(engine.submit(make_request([[number] * 4], scheduling=SchedulingParams(priority))))
    wait_until(lambda: len(engine.core.loop.scheduler) == 4)
    gate.opened.set()
    for state in waiting:
        state.wait()

    assert gate.token_ids[1::4] == [3, 2, 4, 1]


def test_batches_respect_max_num_seqs_and_max_num_batched_tokens(make_engine: MakeEngine) -> None:
    sizes: list[tuple[int, int]] = []

    def record(batch: ScheduledBatch) -> None:
        sizes.append((len(batch), batch.num_tokens))

    engine = make_engine(fault=record, max_num_batched_tokens=50, max_num_seqs=6)
    engine.pool_sync(make_request(random_inputs(3, 300)))

    assert max(count for count, _ in sizes) == 6
    assert all(tokens <= 50 or count == 1 for count, tokens in sizes)
    assert sum(count for count, _ in sizes) == 300


async def test_long_texts_in_tokenize_stop_no_other_call(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, opened, tokenize = make_engine(), threading.Event(), Renderer.tokenize

    def tokenize_slowly(renderer: Renderer, prompt: Any, **options: Any) -> Any:
        assert len(prompt) < 100_000 or opened.wait(20)
        return tokenize(renderer, prompt[:100], **options)

    monkeypatch.setattr(Renderer, "tokenize", tokenize_slowly)

    long = [
        asyncio.create_task(engine.tokenize("a " * (1 << 20)))
        for _ in range(engine.executors.tokenize_long.max_waiting + 1)
    ]
    await asyncio.sleep(0.01)
    with pytest.raises(Overloaded, match="16 calls wait for the tokenize-long threads"):
        await engine.tokenize("a " * (1 << 20))
    request = ScoreRequest(queries=["a b"], documents=["c d"] * 3, score_type="bi-encoder")
    assert len(await asyncio.wait_for(engine.score(request), 10)) == 3
    assert (await asyncio.wait_for(engine.tokenize("a b"), 10)).token_ids
    assert await asyncio.wait_for(engine.collect_metrics(), 10)
    opened.set()
    await asyncio.gather(*long)
