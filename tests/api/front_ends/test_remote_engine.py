"""An engine in another process answers like one in this: here both ends of the wire lie in one process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from cenote import LLM
from cenote.api.front_ends.channel import Channel
from cenote.api.front_ends.messages import EngineMessage, FrontEndMessage
from cenote.api.front_ends.remote_engine import REPLIES_PER_REPORT, RemoteEngine
from cenote.api.front_ends.rpc_server import EngineRpcServer
from cenote.errors import BadRequest, EngineStopped, InputTooLong, PoolingError, Unsupported
from cenote.protocol.engine import Engine
from cenote.protocol.input_types import PromptEmbeds, TextPair
from cenote.protocol.params import PoolingParams, TokenizationParams
from cenote.protocol.requests import PluginRequest, PoolRequest, ScoreRequest, Timing
from cenote.protocol.results import IOProcessorResult, PoolResult, ScoreResult
from tests.engine.conftest import BatchGate, MakeEngine, make_engine  # a fixture  # noqa: F401  # a fixture

TEXTS = ["a cenote is a natural pit", "☃", "", "one more " * 30]


@asynccontextmanager
async def connect_remote(engine: Engine) -> AsyncIterator[tuple[RemoteEngine, EngineRpcServer]]:
    """A front-end's view of an engine, and the engine's view of the front-end."""
    here, there = socket.socketpair()
    answering: EngineRpcServer
    far: RemoteEngine
    engine_end: Channel[FrontEndMessage] = Channel(
        FrontEndMessage, lambda message, numbers: answering.on_message(message), lambda: answering.cancel_all()
    )
    channel: Channel[EngineMessage] = Channel(
        EngineMessage, lambda message, numbers: far.on_response(message, numbers), lambda: far.on_disconnect()
    )
    answering = EngineRpcServer(engine, engine_end)
    far = RemoteEngine(engine.model_info, channel)
    await engine_end.connect(there)
    await channel.connect(here)
    try:
        yield far, answering
    finally:
        channel.close()
        answering.channel.close()
        await asyncio.sleep(0.01)


def call_both(engine: Engine, call: Callable[[Engine], Awaitable[Any]]) -> tuple[Any, Any]:
    """The answers near and far."""

    async def both() -> tuple[Any, Any]:
        async with connect_remote(engine) as (far, _):
            return await call(engine), await asyncio.wait_for(call(far), 20)

    return asyncio.run(both())


async def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it never happened")


@pytest.mark.parametrize("task", ["embed", "token_embed"])
def test_remote_results_equal_local_results_bit_for_bit(llm: LLM, task: Any) -> None:
    how = TokenizationParams(truncate_prompt_tokens=16)
    near, far = call_both(
        llm.engine, lambda engine: engine.pool(PoolRequest(task=task, inputs=TEXTS, tokenization=how))
    )

    for one, other in zip(near, far, strict=True):
        assert isinstance(one, PoolResult) and isinstance(other, PoolResult)
        assert np.array_equal(np.asarray(one.data), np.asarray(other.data))
        assert (one.num_tokens, one.num_input_tokens) == (other.num_tokens, other.num_input_tokens)
    assert near[3].num_tokens < near[3].num_input_tokens


def test_token_ids_and_params_give_the_same_result_remotely(llm: LLM) -> None:
    request = PoolRequest(
        task="embed", inputs=[[101, 7592, 102], (101, 102)], params=PoolingParams(use_activation=False)
    )
    near, far = call_both(llm.engine, lambda engine: engine.pool(request))

    for one, other in zip(near, far, strict=True):
        assert np.array_equal(np.asarray(one.data), np.asarray(other.data))
    assert abs(float(np.linalg.norm(np.asarray(far[0].data))) - 1) > 0.01


def test_remote_scores_equal_local_scores(llm: LLM) -> None:
    request = ScoreRequest(queries=["a"], documents=TEXTS, score_type="bi-encoder")
    near, far = call_both(llm.engine, lambda engine: engine.score(request))

    assert [each.score for each in near] == [each.score for each in far]
    assert all(isinstance(each, ScoreResult) for each in far)


def test_tokenize_and_detokenize_remotely(llm: LLM) -> None:
    near, far = call_both(llm.engine, lambda engine: engine.tokenize("hello ☃", return_token_strs=True))
    assert near == far
    near, far = call_both(llm.engine, lambda engine: engine.detokenize([7592, 2088]))
    assert near == far


def test_an_input_that_is_refused_is_refused_in_the_same_words(llm: LLM) -> None:
    for request in (
        PoolRequest(task="embed", inputs=["a", "word " * 5000]),
        PoolRequest(task="embed", inputs=[[10**30]]),
        PoolRequest(task="embed", inputs=[]),
        PoolRequest(task="classify", inputs=["a"]),
        PoolRequest(task="embed", inputs=["a"], prompt_name="unheard of"),
    ):
        refusals: list[PoolingError] = []

        async def refused(engine: Engine, request: Any = request, refusals: Any = refusals) -> None:
            with pytest.raises(PoolingError) as caught:
                await engine.pool(request)
            refusals.append(caught.value)

        call_both(llm.engine, refused)
        near, far = refusals
        assert (type(near), str(near), near.index, near.param) == (type(far), str(far), far.index, far.param)


def test_return_exceptions_keeps_the_other_results(llm: LLM) -> None:
    request = PoolRequest(task="embed", inputs=["a", "word " * 5000, "b"], return_exceptions=True)
    _, far = call_both(llm.engine, lambda engine: engine.pool(request))

    assert [type(each) for each in far] == [PoolResult, InputTooLong, PoolResult]
    assert far[1].index == 1


def test_timing_is_reported_remotely(llm: LLM) -> None:
    timing = Timing()

    async def question(engine: Engine) -> None:
        await engine.pool(PoolRequest(task="embed", inputs=TEXTS, timing=timing))

    async def only_far() -> None:
        async with connect_remote(llm.engine) as (far, _):
            await question(far)

    asyncio.run(only_far())
    assert timing.tokenize_s > 0
    assert timing.inference_s > 0


def test_a_text_that_cannot_be_encoded_is_a_bad_request(llm: LLM) -> None:
    async def lone_surrogate(engine: Engine) -> None:
        with pytest.raises(BadRequest, match="surrogate"):
            await engine.pool(PoolRequest(task="embed", inputs=["\ud800"]))

    call_both(llm.engine, lone_surrogate)


def test_prompt_embeds_are_refused_remotely(llm: LLM) -> None:
    async def refused() -> None:
        async with connect_remote(llm.engine) as (far, _):
            with pytest.raises(Unsupported, match="--api-server-count 1"):
                await far.pool(PoolRequest(task="embed", inputs=[PromptEmbeds(np.zeros((1, 384)))]))  # type: ignore[arg-type]

    asyncio.run(refused())


def test_concurrent_calls_get_their_own_results(make_engine: MakeEngine) -> None:  # noqa: F811
    async def questions() -> list[Any]:
        async with connect_remote(make_engine()) as (far, _):
            asked = [far.pool(PoolRequest(task="embed", inputs=[[number], [number + 1]])) for number in range(500)]
            return await asyncio.wait_for(asyncio.gather(*asked), 20)

    for number, answers in enumerate(asyncio.run(questions())):
        assert [np.asarray(each.data).tolist() for each in answers] == [[number], [number + 1]]


def test_a_disconnected_client_cancels_its_request_in_the_engine(make_engine: MakeEngine) -> None:  # noqa: F811
    gate = BatchGate()
    engine = make_engine(fault=gate, max_num_batched_tokens=1)

    async def hang_up() -> None:
        async with connect_remote(engine) as (far, answering):
            asked = asyncio.create_task(far.pool(PoolRequest(task="embed", inputs=[[7]] * 100)))
            stays = asyncio.create_task(far.pool(PoolRequest(task="embed", inputs=[[8]])))
            await wait_until(lambda: gate.reached.is_set() and len(engine.metrics.requests_in_flight()) == 2)
            asked.cancel()
            await wait_until(lambda: len(engine.metrics.requests_in_flight()) == 1)
            assert len(answering.tasks) == 1
            gate.opened.set()
            (answer,) = await asyncio.wait_for(stays, 20)
            assert np.asarray(answer.data).tolist() == [8]
            assert not answering.tasks

    asyncio.run(hang_up())
    assert gate.token_ids.count(7) < 100


def test_a_disconnected_front_end_cancels_its_calls(make_engine: MakeEngine) -> None:  # noqa: F811
    gate = BatchGate()
    engine = make_engine(fault=gate)

    async def end() -> None:
        async with connect_remote(engine) as (far, _):
            asked = [asyncio.create_task(far.pool(PoolRequest(task="embed", inputs=[[7]]))) for _ in range(5)]
            await wait_until(lambda: len(engine.metrics.requests_in_flight()) == 5)
            far._channel.close()
            await wait_until(lambda: not engine.metrics.requests_in_flight())
            for outcome in await asyncio.gather(*asked, return_exceptions=True):
                assert isinstance(outcome, EngineStopped)

    asyncio.run(end())
    gate.opened.set()


def test_when_the_engine_process_exits_pending_and_later_calls_fail(make_engine: MakeEngine) -> None:  # noqa: F811
    gate = BatchGate()

    async def end() -> None:
        async with connect_remote(make_engine(fault=gate)) as (far, answering):
            asked = asyncio.create_task(far.pool(PoolRequest(task="embed", inputs=[[7]])))
            await wait_until(gate.reached.is_set)
            answering.channel.close()
            with pytest.raises(EngineStopped, match="process ended"):
                await asyncio.wait_for(asked, 20)
            assert isinstance(far.dead_error, EngineStopped)
            with pytest.raises(EngineStopped, match="process ended"):
                await far.score(ScoreRequest(queries=["a"], documents=["b"]))

    asyncio.run(end())
    gate.opened.set()


def test_a_dead_engine_is_reported_remotely(make_engine: MakeEngine) -> None:  # noqa: F811
    engine = make_engine()

    async def die() -> None:
        async with connect_remote(engine) as (far, _):
            await asyncio.to_thread(engine.stop, EngineStopped("the device is lost"))
            with pytest.raises(EngineStopped, match="the device is lost"):
                await far.pool(PoolRequest(task="embed", inputs=[[7]]))
            assert any(family.name == "cenote_requests_total" for family in await far.collect_metrics())

    asyncio.run(die())


def test_replies_are_counted_where_the_engine_is(make_engine: MakeEngine) -> None:  # noqa: F811
    engine = make_engine()

    def counted(families: Any) -> dict[tuple[str, ...], float]:
        (family,) = [each for each in families if each.name == "http_requests_total"]
        return {series.labels: series.value for series in family.series}

    async def observe() -> None:
        async with connect_remote(engine) as (one, _), connect_remote(engine) as (other, _):
            for _ in range(REPLIES_PER_REPORT + 6):
                one.observe_http("/v1/embeddings", "POST", 200, 0.01)
            await wait_until(lambda: counted(engine.metrics.registry.snapshot()) != {})
            assert counted(engine.metrics.registry.snapshot()) == {
                ("/v1/embeddings", "POST", "200"): REPLIES_PER_REPORT
            }
            other.observe_http("/rerank", "POST", 400, 0.01)
            one.report_stats(num_in_flight=0)
            await one.collect_metrics()
            assert counted(await other.collect_metrics()) == {
                ("/v1/embeddings", "POST", "200"): REPLIES_PER_REPORT + 6,
                ("/rerank", "POST", "400"): 1,
            }

    asyncio.run(observe())


def test_a_bug_in_the_engine_is_answered_and_logged_there(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    class Buggy:
        about = llm.engine.model_info

        async def tokenize(self, item: Any, **options: Any) -> Any:
            raise KeyError("lost")

    async def question() -> None:
        async with connect_remote(Buggy()) as (far, _):  # type: ignore[arg-type]
            with pytest.raises(RuntimeError, match="KeyError: 'lost'"):
                await far.tokenize("a")

    asyncio.run(question())
    assert "KeyError" in caplog.text


def test_plugin_data_is_sent_and_returned_as_plain_values(llm: LLM) -> None:
    class Doubling:
        about = llm.engine.model_info

        async def process(self, request: PluginRequest) -> IOProcessorResult:
            request.timing.inference_s = 1.5
            assert request.tokenization == tokenization and request.tenant == "t"
            made = {"twice": [request.data, request.data], "id": request.request_id, "large": 2**80}
            return IOProcessorResult(made, num_inputs=request.priority, num_tokens=8, num_truncated=1)

    data = {"a": [1, None, 1.5, "☃"]}
    tokenization = TokenizationParams(truncate_prompt_tokens=4)
    given = PluginRequest(data=data, request_id="r", priority=3, tenant="t", tokenization=tokenization)

    async def question() -> IOProcessorResult:
        async with connect_remote(Doubling()) as (far, _):  # type: ignore[arg-type]
            return await far.process(given)

    made = {"twice": [data, data], "id": "r", "large": 2**80}
    assert asyncio.run(question()) == IOProcessorResult(made, num_inputs=3, num_tokens=8, num_truncated=1)
    assert given.timing.inference_s == 1.5


def test_a_text_pair_gives_the_same_result_remotely(llm: LLM) -> None:
    near, far = call_both(
        llm.engine, lambda engine: engine.pool(PoolRequest(task="embed", inputs=[TextPair("a", "b")]))
    )

    assert np.array_equal(np.asarray(near[0].data), np.asarray(far[0].data))
    assert far[0].num_tokens == near[0].num_tokens
