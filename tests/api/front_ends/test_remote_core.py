"""Requests that a front-end tokenizes when something goes wrong: each is answered, and nothing stays behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from cenote import LLM
from cenote.api.engine_process import token_batcher
from cenote.api.wire.messages import ArrayBytes
from cenote.api.wire.token_messages import TokenBatch
from cenote.engine.sequence_group import ScheduledBatch
from cenote.engine.text_engine import MAX_INLINE_INPUTS
from cenote.errors import BadRequest, DeadlineExceeded, PoolingError
from cenote.protocol.engine import EngineStatus
from cenote.protocol.input_types import Conversation
from cenote.protocol.params import PoolingParams
from cenote.protocol.requests import PoolRequest
from cenote.protocol.scheduling import SchedulingParams
from tests.api.front_ends.machines import BlockedRenderer, embed, get_core, get_token_link
from tests.api.front_ends.remote_link import call_both, connect_remote, wait_until
from tests.engine.conftest import SENDERS, SHARED, BatchGate, MakeEngine, raise_on_tokens
from tests.engine.metric_values import get_series, get_value
from tests.scoring.listwise import DOCUMENTS, QUERY, JinaReranker


@pytest.mark.parametrize(("status", "reason"), [("failed", "5 engine processes failed"), ("restarting", "SIGSEGV")])
async def test_the_state_is_kept_if_it_is_reported_before_the_end_of_the_link(
    make_engine: MakeEngine, status: EngineStatus, reason: str
) -> None:
    async with connect_remote(make_engine()) as (remote, link):
        remote.availability.on_report("ready")
        remote.availability.on_report(status, reason)
        assert remote.status == "ready"
        link.channel.close()
        await wait_until(lambda: remote.status != "ready")
        assert (remote.status, remote.availability.reason) == (status, reason)


@pytest.mark.parametrize(("options", "num_computed"), [({}, 4), (SHARED, 2)])
async def test_inputs_of_front_ends_are_shared_within_a_tenant_and_salt(
    make_engine: MakeEngine, options: dict[str, Any], num_computed: int
) -> None:
    gate = BatchGate()

    engine = make_engine(fault=gate, **options)
    async with connect_remote(engine) as (remote, _):
        tasks = [embed(remote, [[7]])]
        await wait_until(gate.reached.is_set)
        tasks += [embed(remote, [[5]], scheduling=scheduling) for scheduling in SENDERS]
        dedup = engine.core.dedup
        await wait_until(lambda: len(dedup.in_flight) + dedup.num_waiting_duplicates == 7)
        gate.opened.set()
        await asyncio.gather(*tasks)
    assert gate.token_ids == [7] + [5] * num_computed


@pytest.mark.parametrize("num_inputs", [1, 3, MAX_INLINE_INPUTS + 1])
async def test_the_tokens_of_a_request_are_known_before_it_is_computed(
    make_engine: MakeEngine, num_inputs: int
) -> None:
    gate, counts = BatchGate(), list[int]()

    async with connect_remote(make_engine(fault=gate)) as (remote, _):
        task = embed(remote, [[7, 8]] * num_inputs, on_tokenized=counts.append)
        other = embed(remote, [[9]])
        await wait_until(gate.reached.is_set)
        assert counts == [2 * num_inputs]
        gate.opened.set()
        await asyncio.gather(task, other)
    assert counts == [2 * num_inputs]


async def test_cancelled_calls_leave_nothing_in_the_engine_process(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate, max_num_batched_tokens=1)

    async with connect_remote(engine) as (remote, link):
        calls = [embed(remote, [[7 + number]] * 100) for number in range(5)]
        await wait_until(lambda: len(engine.metrics.requests_in_flight()) == 5)
        for call in calls:
            call.cancel()
        await wait_until(lambda: not engine.metrics.requests_in_flight())
        gate.opened.set()
        await embed(remote, [[99]])
        assert not get_token_link(link).open_calls
        assert not get_token_link(link).batcher.calls
        assert not remote.calls.pending
    assert get_value(engine, "cenote_requests_total", "cancelled") == 5
    assert get_value(engine, "cenote_inputs_total") < 100  # only those with a result


def test_the_texts_of_a_listwise_reranker_are_one_input_remotely(jina: JinaReranker) -> None:
    request = PoolRequest(task="token_embed", inputs=[*DOCUMENTS, QUERY])
    local, remote = call_both(jina.llm.engine, lambda engine: engine.pool(request))

    assert len(local) == len(remote) == 1
    assert np.array_equal(np.asarray(local[0].data), np.asarray(remote[0].data))


async def test_refused_options_that_are_remembered_keep_no_request(llm: LLM) -> None:
    async with connect_remote(llm.engine) as (remote, _):
        for _ in range(2):  # the second one gets the error that is remembered
            with pytest.raises(BadRequest, match="matryoshka"):
                await embed(remote, ["a"], params=PoolingParams(dimensions=10_000))
        (registered,) = get_core(remote).options.registered.values()
        error = registered.future.exception()
        assert isinstance(error, BadRequest) and error.__traceback__ is None


async def test_options_that_cannot_be_encoded_are_refused_every_time(make_engine: MakeEngine) -> None:
    async with connect_remote(make_engine()) as (remote, _):
        for _ in range(2):
            with pytest.raises(OverflowError):
                await asyncio.wait_for(embed(remote, [[7]], scheduling=SchedulingParams(2**70)), 5)
        assert get_core(remote).channel.num_pending_calls == 0


async def test_an_unexpected_error_in_options_is_an_answer_and_the_link_stays(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()

    async with connect_remote(engine) as (remote, _):
        with monkeypatch.context() as patch:
            patch.setattr(engine.request_checks, "resolve_options", lambda request: {"a": 1}["missing"])
            with pytest.raises(RuntimeError, match="KeyError"):
                await asyncio.wait_for(embed(remote, [[7]], params=PoolingParams(use_activation=False)), 5)
        assert remote.status == "ready"
        (result,) = await asyncio.wait_for(embed(remote, [[8]]), 5)
        assert np.asarray(result.data).tolist() == [8]


class Panic(BaseException):
    """As the tokenizers library raises it: no subclass of Exception."""


async def test_an_input_that_the_tokenizer_cannot_process_fails_alone(make_engine: MakeEngine) -> None:
    async with connect_remote(make_engine()) as (remote, _):
        client = get_core(remote)
        render = client.renderer.texts.renderer.render

        def render_or_panic(inputs: Sequence[Any], *arguments: Any) -> Any:
            if [13] in inputs:
                raise Panic("not a digit")
            return render(inputs, *arguments)

        client.renderer.texts.renderer.render = render_or_panic  # type: ignore[method-assign,assignment]
        await embed(remote, [[7]])  # registers the options, so that the next requests are rendered together
        first, bad, last = embed(remote, [[7], [8]]), embed(remote, [[9], [13]]), embed(remote, [[10]])
        assert [np.asarray(result.data).tolist() for result in await asyncio.wait_for(first, 5)] == [[7], [8]]
        assert len(await asyncio.wait_for(last, 5)) == 1
        with pytest.raises(PoolingError, match="Panic: not a digit") as caught:
            await asyncio.wait_for(bad, 5)
        assert caught.value.index == 1


@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        (["a"] * 8, {"prompt": "word " * 1000}),
        ([Conversation([{"role": "user", "content": "a"}], template="{{ 'a ' * 100000 }}")], {}),
    ],
    ids=["prompt", "template of the request"],
)
async def test_what_becomes_long_is_not_tokenized_in_the_event_loop(
    make_engine: MakeEngine, inputs: Sequence[Any], options: dict[str, Any]
) -> None:
    async with connect_remote(make_engine()) as (remote, _):
        renderer = BlockedRenderer(get_core(remote))
        renderer.allowed.set()
        with pytest.raises(PoolingError):  # too long
            await embed(remote, inputs, **options)

    assert all(name.startswith("cenote-tokenizer") for name in renderer.threads)


async def test_requests_that_a_front_end_refuses_are_counted(make_engine: MakeEngine) -> None:
    engine = make_engine()

    async with connect_remote(engine) as (remote, _):
        await embed(remote, [[7]])
        for inputs, options in (([[7] * 5000], {}), ([[7]], {"adapter": "none"})):
            with pytest.raises(BadRequest):
                await embed(remote, inputs, **options)
        await wait_until(lambda: get_value(engine, "cenote_requests_total", "refused") == 2)
        assert get_value(engine, "cenote_queue_length", "wire") >= 0
    assert get_value(engine, "cenote_requests_total", "answered") == 1


async def test_requests_that_run_together_are_counted_by_their_own_outcome(make_engine: MakeEngine) -> None:
    engine = make_engine(fault=raise_on_tokens(666))

    async with connect_remote(engine) as (remote, _):
        await embed(remote, [[7]])
        good, bad = embed(remote, [[8, 9], [10]]), embed(remote, [[11], [666]])
        await asyncio.wait_for(good, 5)
        with pytest.raises(PoolingError, match="the model failed on this input"):
            await asyncio.wait_for(bad, 5)
        await wait_until(lambda: not engine.metrics.requests_in_flight())
    assert get_value(engine, "cenote_requests_total", "answered") == 2
    assert get_value(engine, "cenote_requests_total", "failed") == 1
    assert get_value(engine, "cenote_inputs_total") == 4
    assert get_value(engine, "cenote_prompt_tokens_total") == 5
    assert sum(get_series(engine, "cenote_request_duration_seconds")[0].counts) == 2


async def test_a_large_request_is_sent_in_parts_with_the_same_results(llm: LLM) -> None:
    # many characters make many parts; a word as long as the last one is a single token
    texts = [f"text number {number} {'word ' * (number % 5)}{'x' * 300}" for number in range(100)]

    async with connect_remote(llm.engine) as (remote, link):
        token_link, parts = get_token_link(link), list[int]()
        on_batch = token_link.on_batch

        def record_part(message: TokenBatch, array_bytes: ArrayBytes) -> None:
            parts.extend(message.num_inputs)
            on_batch(message, array_bytes)

        token_link.on_batch = record_part  # type: ignore[method-assign]
        answered = get_value(llm.engine, "cenote_requests_total", "answered")
        results = await embed(remote, texts)
        await wait_until(lambda: get_value(llm.engine, "cenote_requests_total", "answered") == answered + 1)
        assert not token_link.open_calls
        assert sum(parts) == 100
        local = await llm.engine.pool(PoolRequest(task="embed", inputs=texts))
    assert len(parts) > 1
    for ours, expected in zip(results, local, strict=True):
        assert np.array_equal(ours.data, expected.data)
        assert ours.num_tokens == expected.num_tokens


async def test_an_error_in_a_later_part_cancels_the_parts_that_were_sent(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate, max_num_batched_tokens=64)
    texts = [f"text number {number} " + "word " * 50 for number in range(400)]

    async with connect_remote(engine) as (remote, link):
        client = get_core(remote)
        render, num_calls = client.renderer.texts.renderer.render, 0

        def fail_later(inputs: Any, *arguments: Any) -> Any:
            nonlocal num_calls
            num_calls += 1
            if num_calls > 2:
                raise RuntimeError("broken")
            return render(inputs, *arguments)

        client.renderer.texts.renderer.render = fail_later  # type: ignore[method-assign]
        with pytest.raises(PoolingError, match="broken"):
            await embed(remote, texts)
        await wait_until(lambda: not get_token_link(link).batcher.calls)
        assert not get_token_link(link).open_calls
        gate.opened.set()
        await wait_until(lambda: not engine.metrics.requests_in_flight())
        await wait_until(lambda: len(engine.core.loop.scheduler) == 0)
    assert len(gate.token_ids) <= 64  # the batch that had started
    assert get_value(engine, "cenote_requests_total", "cancelled") == 1


async def test_small_calls_that_were_merged_are_cancelled_one_by_one(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate, max_num_batched_tokens=16)

    async with connect_remote(engine) as (remote, link):
        first = embed(remote, [[9]])
        await wait_until(gate.reached.is_set)
        calls = [embed(remote, [[100 + number] * 8] * 2) for number in range(50)]
        await wait_until(lambda: len(engine.core.loop.scheduler) == 50)
        for number, pending in enumerate(calls):
            if number != 20:
                pending.cancel()
        await asyncio.sleep(0.05)
        gate.opened.set()
        assert len(await calls[20]) == 2
        await first
        await wait_until(lambda: not get_token_link(link).batcher.calls)
        await wait_until(lambda: not engine.metrics.requests_in_flight())
    assert set(gate.token_ids) <= {9, 120}
    assert get_value(engine, "cenote_requests_total", "cancelled") == 49
    assert get_value(engine, "cenote_requests_total", "answered") == 2
    assert len(engine.core.loop.scheduler) == engine.core.loop.scheduler.num_waiting_tokens == 0


async def test_a_cancelled_input_runs_if_another_request_waits_for_its_result(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate, max_num_batched_tokens=16)

    async with connect_remote(engine) as (remote, _):
        first = embed(remote, [[9]])
        await wait_until(gate.reached.is_set)
        original, neighbour = embed(remote, [[100] * 8]), embed(remote, [[101] * 8])
        await wait_until(lambda: len(engine.core.loop.scheduler) == 2)
        duplicate = embed(remote, [[100] * 8])
        await wait_until(lambda: engine.core.dedup.num_waiting_duplicates == 1)
        original.cancel()
        await asyncio.sleep(0.05)
        gate.opened.set()
        await asyncio.wait_for(asyncio.gather(first, neighbour, duplicate), 20)


async def test_expired_calls_are_not_sent_and_not_run(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate, max_num_batched_tokens=16)

    async with connect_remote(engine) as (remote, _):
        first = embed(remote, [[9]])
        await wait_until(gate.reached.is_set)
        with pytest.raises(DeadlineExceeded):
            await embed(remote, [[99]], deadline_at=time.monotonic() - 1)
        soon = time.monotonic() + 0.1
        late = [embed(remote, [[100 + number]], deadline_at=soon) for number in range(5)]
        in_time = embed(remote, [[200]], deadline_at=soon + 60)
        await wait_until(lambda: len(engine.core.loop.scheduler) == 6)
        await asyncio.sleep(0.15)
        gate.opened.set()
        for pending in late:
            with pytest.raises(DeadlineExceeded, match="its deadline passed"):
                await pending
        await asyncio.gather(first, in_time)
    assert sorted(gate.token_ids) == [9, 200]
    assert get_value(engine, "cenote_requests_total", "expired") == 5


async def test_results_that_cannot_be_sent_fail_their_requests_and_not_the_engine(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> Any:
        raise OverflowError("too large")

    async with connect_remote(make_engine()) as (remote, _):
        with monkeypatch.context() as patch:
            patch.setattr(token_batcher, "make_times", fail)
            with pytest.raises(PoolingError, match="could not send the results"):
                await asyncio.wait_for(embed(remote, [[7]]), 5)
        assert len(await asyncio.wait_for(embed(remote, [[7]]), 5)) == 1


@pytest.mark.parametrize(("max_tokens", "lane"), [(500, "interactive"), (499, "bulk")])
async def test_the_tokens_of_a_request_decide_its_lane_before_any_is_sent(
    make_engine: MakeEngine, max_tokens: int, lane: str
) -> None:
    seen = set[str]()

    def record(batch: ScheduledBatch) -> None:
        seen.update(part.group.scheduling.lane for part in batch.slices)

    def choose(num_tokens: int) -> str:
        return "interactive" if num_tokens <= max_tokens else "bulk"

    async with connect_remote(make_engine(fault=record)) as (remote, _):
        scheduling = SchedulingParams(lane="bulk")
        await embed(remote, ["one two three"] * 100, scheduling=scheduling, on_tokenized=choose)
    assert seen == {lane}
