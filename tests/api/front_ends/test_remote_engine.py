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
from cenote.api.front_ends.messages import FromEngine, FromFrontEnd
from cenote.api.front_ends.remote_engine import REPLIES_AT_ONCE, RemoteEngine
from cenote.api.front_ends.rpc_server import Answering
from cenote.errors import BadRequest, EngineStopped, InputTooLong, PoolingError, Unsupported
from cenote.protocol.input_types import Embeds, Pair
from cenote.protocol.requests import (
    Engine,
    PluginRequest,
    Pooled,
    PoolingParams,
    PoolRequest,
    Processed,
    Scored,
    ScoreRequest,
    Timing,
    Tokenization,
)
from tests.engine.conftest import Gate, MakeEngine, make_engine  # noqa: F401  # a fixture

TEXTS = ["a cenote is a natural pit", "☃", "", "one more " * 30]


@asynccontextmanager
async def remote(engine: Engine) -> AsyncIterator[tuple[RemoteEngine, Answering]]:
    """A front-end's view of an engine, and the engine's view of the front-end."""
    here, there = socket.socketpair()
    answering: Answering
    far: RemoteEngine
    engine_end: Channel[FromFrontEnd] = Channel(
        FromFrontEnd, lambda message, numbers: answering.receive(message), lambda: answering.abandon()
    )
    channel: Channel[FromEngine] = Channel(
        FromEngine, lambda message, numbers: far.answered(message, numbers), lambda: far.lost()
    )
    answering = Answering(engine, engine_end)
    far = RemoteEngine(engine.about, channel)
    await engine_end.connect(there)
    await channel.connect(here)
    try:
        yield far, answering
    finally:
        channel.close()
        answering.channel.close()
        await asyncio.sleep(0.01)


def ask(engine: Engine, question: Callable[[Engine], Awaitable[Any]]) -> tuple[Any, Any]:
    """The answers near and far."""

    async def both() -> tuple[Any, Any]:
        async with remote(engine) as (far, _):
            return await question(engine), await asyncio.wait_for(question(far), 20)

    return asyncio.run(both())


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it never happened")


@pytest.mark.parametrize("task", ["embed", "token_embed"])
def test_answers_are_the_same_bit_for_bit_near_and_far(llm: LLM, task: Any) -> None:
    how = Tokenization(truncate_prompt_tokens=16)
    near, far = ask(llm.engine, lambda engine: engine.pool(PoolRequest(task=task, inputs=TEXTS, tokenization=how)))

    for one, other in zip(near, far, strict=True):
        assert isinstance(one, Pooled) and isinstance(other, Pooled)
        assert np.array_equal(np.asarray(one.data), np.asarray(other.data))
        assert (one.num_tokens, one.num_input_tokens) == (other.num_tokens, other.num_input_tokens)
    assert near[3].num_tokens < near[3].num_input_tokens


def test_token_ids_and_params_mean_the_same_near_and_far(llm: LLM) -> None:
    request = PoolRequest(
        task="embed", inputs=[[101, 7592, 102], (101, 102)], params=PoolingParams(use_activation=False)
    )
    near, far = ask(llm.engine, lambda engine: engine.pool(request))

    for one, other in zip(near, far, strict=True):
        assert np.array_equal(np.asarray(one.data), np.asarray(other.data))
    assert abs(float(np.linalg.norm(np.asarray(far[0].data))) - 1) > 0.01


def test_scores_are_the_same_near_and_far(llm: LLM) -> None:
    request = ScoreRequest(queries=["a"], documents=TEXTS, score_type="bi-encoder")
    near, far = ask(llm.engine, lambda engine: engine.score(request))

    assert [each.score for each in near] == [each.score for each in far]
    assert all(isinstance(each, Scored) for each in far)


def test_tokens_there_and_back(llm: LLM) -> None:
    near, far = ask(llm.engine, lambda engine: engine.tokenize("hello ☃", strings=True))
    assert near == far
    near, far = ask(llm.engine, lambda engine: engine.detokenize([7592, 2088]))
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

        ask(llm.engine, refused)
        near, far = refusals
        assert (type(near), str(near), near.index, near.param) == (type(far), str(far), far.index, far.param)


def test_one_bad_input_of_a_patient_request_leaves_the_others_alone(llm: LLM) -> None:
    request = PoolRequest(task="embed", inputs=["a", "word " * 5000, "b"], keep_going=True)
    _, far = ask(llm.engine, lambda engine: engine.pool(request))

    assert [type(each) for each in far] == [Pooled, InputTooLong, Pooled]
    assert far[1].index == 1


def test_where_the_time_went_is_told_far_away_too(llm: LLM) -> None:
    timing = Timing()

    async def question(engine: Engine) -> None:
        await engine.pool(PoolRequest(task="embed", inputs=TEXTS, timing=timing))

    async def only_far() -> None:
        async with remote(llm.engine) as (far, _):
            await question(far)

    asyncio.run(only_far())
    assert timing.tokenize > 0
    assert timing.inference > 0


def test_a_text_that_cannot_be_written_down_is_the_callers_mistake(llm: LLM) -> None:
    async def lone_surrogate(engine: Engine) -> None:
        with pytest.raises(BadRequest, match="surrogate"):
            await engine.pool(PoolRequest(task="embed", inputs=["\ud800"]))

    ask(llm.engine, lone_surrogate)


def test_embeddings_as_input_stay_near(llm: LLM) -> None:
    async def refused() -> None:
        async with remote(llm.engine) as (far, _):
            with pytest.raises(Unsupported, match="--api-server-count 1"):
                await far.pool(PoolRequest(task="embed", inputs=[Embeds(np.zeros((1, 384)))]))  # type: ignore[arg-type]

    asyncio.run(refused())


def test_many_questions_at_once_get_their_own_answers(make_engine: MakeEngine) -> None:  # noqa: F811
    async def questions() -> list[Any]:
        async with remote(make_engine()) as (far, _):
            asked = [far.pool(PoolRequest(task="embed", inputs=[[number], [number + 1]])) for number in range(500)]
            return await asyncio.wait_for(asyncio.gather(*asked), 20)

    for number, answers in enumerate(asyncio.run(questions())):
        assert [np.asarray(each.data).tolist() for each in answers] == [[number], [number + 1]]


def test_a_client_that_hangs_up_has_its_work_dropped_in_the_engine(make_engine: MakeEngine) -> None:  # noqa: F811
    gate = Gate()
    engine = make_engine(fault=gate, max_num_batched_tokens=1)

    async def hang_up() -> None:
        async with remote(engine) as (far, answering):
            asked = asyncio.create_task(far.pool(PoolRequest(task="embed", inputs=[[7]] * 100)))
            stays = asyncio.create_task(far.pool(PoolRequest(task="embed", inputs=[[8]])))
            await until(lambda: gate.reached.is_set() and len(engine.records.everybody()) == 2)
            asked.cancel()
            await until(lambda: len(engine.records.everybody()) == 1)
            assert len(answering.tasks) == 1
            gate.opened.set()
            (answer,) = await asyncio.wait_for(stays, 20)
            assert np.asarray(answer.data).tolist() == [8]
            assert not answering.tasks

    asyncio.run(hang_up())
    assert gate.passed.count(7) < 100


def test_a_front_end_that_ends_takes_its_questions_along(make_engine: MakeEngine) -> None:  # noqa: F811
    gate = Gate()
    engine = make_engine(fault=gate)

    async def end() -> None:
        async with remote(engine) as (far, _):
            asked = [asyncio.create_task(far.pool(PoolRequest(task="embed", inputs=[[7]]))) for _ in range(5)]
            await until(lambda: len(engine.records.everybody()) == 5)
            far._channel.close()
            await until(lambda: not engine.records.everybody())
            for outcome in await asyncio.gather(*asked, return_exceptions=True):
                assert isinstance(outcome, EngineStopped)

    asyncio.run(end())
    gate.opened.set()


def test_when_the_engines_process_ends_everybody_is_told_and_later_callers_at_once(make_engine: MakeEngine) -> None:  # noqa: F811
    gate = Gate()

    async def end() -> None:
        async with remote(make_engine(fault=gate)) as (far, answering):
            asked = asyncio.create_task(far.pool(PoolRequest(task="embed", inputs=[[7]])))
            await until(gate.reached.is_set)
            answering.channel.close()
            with pytest.raises(EngineStopped, match="process ended"):
                await asyncio.wait_for(asked, 20)
            assert isinstance(far.dead, EngineStopped)
            with pytest.raises(EngineStopped, match="process ended"):
                await far.score(ScoreRequest(queries=["a"], documents=["b"]))

    asyncio.run(end())
    gate.opened.set()


def test_an_engine_that_died_says_so_through_the_wire(make_engine: MakeEngine) -> None:  # noqa: F811
    engine = make_engine()

    async def die() -> None:
        async with remote(engine) as (far, _):
            await asyncio.to_thread(engine.stop, EngineStopped("the device is lost"))
            with pytest.raises(EngineStopped, match="the device is lost"):
                await far.pool(PoolRequest(task="embed", inputs=[[7]]))
            assert any(family.name == "cenote_requests_total" for family in await far.statistics())

    asyncio.run(die())


def test_replies_are_counted_where_the_engine_is(make_engine: MakeEngine) -> None:  # noqa: F811
    engine = make_engine()

    def counted(families: Any) -> dict[tuple[str, ...], float]:
        (family,) = [each for each in families if each.name == "http_requests_total"]
        return {series.labels: series.value for series in family.series}

    async def observe() -> None:
        async with remote(engine) as (one, _), remote(engine) as (other, _):
            for _ in range(REPLIES_AT_ONCE + 6):
                one.observe_http("/v1/embeddings", "POST", 200, 0.01)
            await until(lambda: counted(engine.records.metrics.snapshot()) != {})
            assert counted(engine.records.metrics.snapshot()) == {("/v1/embeddings", "POST", "200"): REPLIES_AT_ONCE}
            other.observe_http("/rerank", "POST", 400, 0.01)
            one.report(num_in_flight=0)
            await one.statistics()
            assert counted(await other.statistics()) == {
                ("/v1/embeddings", "POST", "200"): REPLIES_AT_ONCE + 6,
                ("/rerank", "POST", "400"): 1,
            }

    asyncio.run(observe())


def test_a_bug_in_the_engine_is_answered_and_logged_there(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    class Buggy:
        about = llm.engine.about

        async def tokenize(self, item: Any, **options: Any) -> Any:
            raise KeyError("lost")

    async def question() -> None:
        async with remote(Buggy()) as (far, _):  # type: ignore[arg-type]
            with pytest.raises(RuntimeError, match="KeyError: 'lost'"):
                await far.tokenize("a")

    asyncio.run(question())
    assert "KeyError" in caplog.text


def test_data_for_a_plugin_goes_there_and_back_as_plain_values(llm: LLM) -> None:
    class Doubling:
        about = llm.engine.about

        async def process(self, request: PluginRequest) -> Processed:
            request.timing.inference = 1.5
            assert request.tokenization == tokenization and request.tenant == "t"
            made = {"twice": [request.data, request.data], "id": request.request_id, "large": 2**80}
            return Processed(made, num_inputs=request.priority, num_tokens=8, num_truncated=1)

    data = {"a": [1, None, 1.5, "☃"]}
    tokenization = Tokenization(truncate_prompt_tokens=4)
    given = PluginRequest(data=data, request_id="r", priority=3, tenant="t", tokenization=tokenization)

    async def question() -> Processed:
        async with remote(Doubling()) as (far, _):  # type: ignore[arg-type]
            return await far.process(given)

    made = {"twice": [data, data], "id": "r", "large": 2**80}
    assert asyncio.run(question()) == Processed(made, num_inputs=3, num_tokens=8, num_truncated=1)
    assert given.timing.inference == 1.5


def test_a_pair_of_texts_is_read_the_same_near_and_far(llm: LLM) -> None:
    near, far = ask(llm.engine, lambda engine: engine.pool(PoolRequest(task="embed", inputs=[Pair("a", "b")])))

    assert np.array_equal(np.asarray(near[0].data), np.asarray(far[0].data))
    assert far[0].num_tokens == near[0].num_tokens
