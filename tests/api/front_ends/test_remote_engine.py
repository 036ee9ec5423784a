"""A remote engine returns the same results as a local one; here both ends of the channel are in one process."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from cenote import LLM
from cenote.api.front_ends.remote_engine import RECONNECT_DELAY_S, RemoteEngine
from cenote.api.wire.link_sockets import make_link
from cenote.engine.text_engine import MAX_INLINE_INPUTS
from cenote.errors import EngineStopped, InputTooLong, PoolingError
from cenote.protocol.engine import Engine
from cenote.protocol.input_types import ChunkedDocument, TextPair
from cenote.protocol.params import PoolingParams, TokenizationParams
from cenote.protocol.requests import PluginRequest, PoolRequest, ScoreRequest, Timing
from cenote.protocol.results import IOProcessorResult, PoolResult, ScoreResult
from cenote.protocol.scheduling import SchedulingParams
from tests.api.front_ends.remote_link import call_both, connect_remote, wait_until
from tests.engine.conftest import BatchGate, MakeEngine

TEXTS = ["a cenote is a natural pit", "☃", "", "one more " * 30]


CUT = TokenizationParams(truncate_prompt_tokens=16)
DOCUMENT = ChunkedDocument(("a cenote is", " a natural pit ☃", " with water"))
REQUESTS: dict[str, dict[str, Any]] = {
    "texts": {"inputs": TEXTS, "tokenization": CUT},
    "tokens of texts": {"inputs": TEXTS, "tokenization": CUT, "task": "token_embed"},
    "many empty texts": {"inputs": [""] * (MAX_INLINE_INPUTS + 1)},
    "token ids": {"inputs": [[101, 7592, 102], (101, 102)], "params": PoolingParams(use_activation=False)},
    "a pair": {"inputs": [TextPair("a", "b")]},
    "chunks of a document": {"inputs": [DOCUMENT], "params": PoolingParams(late_chunking=True)},
}


@pytest.mark.parametrize("fields", REQUESTS.values(), ids=REQUESTS)
def test_remote_results_equal_local_results_bit_for_bit(llm: LLM, fields: dict[str, Any]) -> None:
    request = PoolRequest(**{"task": "embed"} | fields)
    local, remote = call_both(llm.engine, lambda engine: engine.pool(request))

    for one, other in zip(local, remote, strict=True):
        assert isinstance(one, PoolResult) and isinstance(other, PoolResult)
        assert np.array_equal(np.asarray(one.data), np.asarray(other.data))
        assert (one.num_tokens, one.num_input_tokens) == (other.num_tokens, other.num_input_tokens)


def test_remote_scores_equal_local_scores(llm: LLM) -> None:
    request = ScoreRequest(queries=["a"], documents=TEXTS, score_type="bi-encoder")
    local, remote = call_both(llm.engine, lambda engine: engine.score(request))

    assert [result.score for result in local] == [result.score for result in remote]
    assert all(isinstance(result, ScoreResult) for result in remote)


def test_tokenize_and_detokenize_remotely(llm: LLM) -> None:
    local, remote = call_both(llm.engine, lambda engine: engine.tokenize("hello ☃", return_token_strs=True))
    assert local == remote
    local, remote = call_both(llm.engine, lambda engine: engine.detokenize([7592, 2088]))
    assert local == remote


def test_an_invalid_input_is_refused_with_the_same_error_remotely(llm: LLM) -> None:
    for request in (
        PoolRequest(task="embed", inputs=["a", "word " * 5000]),
        PoolRequest(task="embed", inputs=[[10**30]]),
        PoolRequest(task="embed", inputs=[]),
        PoolRequest(task="embed", inputs=["\ud800"]),
        PoolRequest(task="classify", inputs=["a"]),
        PoolRequest(task="embed", inputs=["a"], prompt_name="unknown"),
    ):
        errors: list[PoolingError] = []

        async def pool_refused(engine: Engine, request: Any = request, errors: Any = errors) -> None:
            with pytest.raises(PoolingError) as caught:
                await engine.pool(request)
            errors.append(caught.value)

        call_both(llm.engine, pool_refused)
        local, remote = errors
        assert (type(local), str(local), local.index, local.param) == (
            type(remote),
            str(remote),
            remote.index,
            remote.param,
        )


def test_return_exceptions_keeps_the_other_results(llm: LLM) -> None:
    request = PoolRequest(task="embed", inputs=["a", "word " * 5000, "b"], return_exceptions=True)
    _, remote = call_both(llm.engine, lambda engine: engine.pool(request))

    assert [type(result) for result in remote] == [PoolResult, InputTooLong, PoolResult]
    assert remote[1].index == 1


async def test_the_stages_of_a_remote_request_add_up_to_its_time(llm: LLM) -> None:
    async def time_calls(make_call: Callable[[Timing], Awaitable[object]]) -> list[tuple[float, Timing]]:
        timed = []
        for _ in range(4):
            timing, started_at = Timing(), time.monotonic()
            await make_call(timing)
            timed.append((timing.mark_delivered() - started_at, timing))
        return timed

    async with connect_remote(llm.engine) as (remote, _):
        await remote.pool(PoolRequest(task="embed", inputs=["a"]))  # registers the options
        result = [
            await time_calls(lambda timing: remote.pool(PoolRequest(task="embed", inputs=TEXTS[:1], timing=timing))),
            await time_calls(lambda timing: remote.score(ScoreRequest(queries=["a"], documents=TEXTS, timing=timing))),
        ]

    for timed in result:
        shares = []  # of the time of each request
        for elapsed, timing in timed:
            waiting = timing.parse_s + timing.tokenize_s + timing.queue_s + timing.wire_s
            engine = timing.pack_s + timing.device_s + timing.deliver_s
            assert min(timing.tokenize_s, timing.wire_s, timing.pack_s, timing.device_s, timing.deliver_s) > 0
            assert timing.pack_s + timing.device_s <= timing.inference_s
            assert waiting + engine <= elapsed + 0.005
            shares.append((waiting + engine) / elapsed)
        assert max(shares) >= 0.5  # a machine that is busy with other work may stop the event loop between two stages


def test_concurrent_calls_get_their_own_results(make_engine: MakeEngine) -> None:
    async def pool_concurrently() -> list[Any]:
        async with connect_remote(make_engine()) as (remote, _):
            calls = [remote.pool(PoolRequest(task="embed", inputs=[[number], [number + 1]])) for number in range(500)]
            return await asyncio.wait_for(asyncio.gather(*calls), 20)

    for number, results in enumerate(asyncio.run(pool_concurrently())):
        assert [np.asarray(result.data).tolist() for result in results] == [[number], [number + 1]]


async def test_a_disconnected_client_cancels_its_request_in_the_engine(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate, max_num_batched_tokens=1)

    async with connect_remote(engine) as (remote, link):
        cancelled = asyncio.create_task(remote.pool(PoolRequest(task="embed", inputs=[[7]] * 100)))
        kept = asyncio.create_task(remote.pool(PoolRequest(task="embed", inputs=[[8]])))
        await wait_until(lambda: gate.reached.is_set() and len(engine.metrics.requests_in_flight()) == 2)
        cancelled.cancel()
        await wait_until(lambda: len(engine.metrics.requests_in_flight()) == 1)
        gate.opened.set()
        (result,) = await asyncio.wait_for(kept, 20)
        assert np.asarray(result.data).tolist() == [8]
    assert gate.token_ids.count(7) < 100


async def test_a_disconnected_front_end_cancels_its_calls(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate)

    async with connect_remote(engine) as (remote, _):
        calls = [asyncio.create_task(remote.pool(PoolRequest(task="embed", inputs=[[7]]))) for _ in range(5)]
        await wait_until(lambda: sum(state.num_requests for state in engine.metrics.requests_in_flight()) == 5)
        remote.close()
        await wait_until(lambda: not engine.metrics.requests_in_flight())
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, EngineStopped)
    gate.opened.set()


async def test_an_internal_error_of_the_engine_is_returned_and_logged(
    llm: LLM, caplog: pytest.LogCaptureFixture
) -> None:
    class FailingEngine:
        model_info = llm.engine.model_info

        async def process(self, request: PluginRequest) -> Any:
            raise KeyError("lost")

    async with connect_remote(FailingEngine()) as (remote, _):  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="KeyError: 'lost'"):
            await remote.process(PluginRequest(data={}, request_id="r"))
    assert "KeyError" in caplog.text


async def test_plugin_data_is_sent_and_returned_as_plain_values(llm: LLM) -> None:
    class DoublingEngine:
        model_info = llm.engine.model_info

        async def process(self, request: PluginRequest) -> IOProcessorResult:
            request.timing.inference_s = 1.5
            assert request.tokenization == tokenization and request.scheduling.tenant == "t"
            output = {"twice": [request.data, request.data], "id": request.request_id, "large": 2**80}
            return IOProcessorResult(output, num_inputs=request.scheduling.priority, num_tokens=8, num_truncated=1)

    data = {"a": [1, None, 1.5, "☃"]}
    tokenization = TokenizationParams(truncate_prompt_tokens=4)
    request = PluginRequest(data=data, request_id="r", scheduling=SchedulingParams(3, "t"), tokenization=tokenization)

    output = {"twice": [data, data], "id": "r", "large": 2**80}

    async with connect_remote(DoublingEngine()) as (remote, _):  # type: ignore[arg-type]
        result = await remote.process(request)

    assert result == IOProcessorResult(output, num_inputs=3, num_tokens=8, num_truncated=1)
    assert request.timing.inference_s == 1.5


async def test_a_link_that_is_lost_is_reported_unless_the_front_end_has_closed_it(llm: LLM) -> None:
    reports: list[str] = []

    for name in ("engine", "front-end"):
        ours, theirs = make_link()
        remote = RemoteEngine(on_link_lost=lambda name=name: reports.append(name))  # type: ignore[misc]
        await remote.connect(ours)
        if name == "front-end":
            remote.close()
        theirs.close()
        await asyncio.sleep(2 * RECONNECT_DELAY_S)
        remote.close()
    assert reports == ["engine"]


async def test_a_link_that_finds_no_descriptor_is_reported_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(sock: socket.socket) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    reports: list[str] = []
    ours, theirs = make_link()
    remote = RemoteEngine(on_link_lost=lambda: reports.append("lost"))
    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "dup", fail)
        await remote.connect(ours)
    await asyncio.sleep(2 * RECONNECT_DELAY_S)
    remote.close()

    assert reports == ["lost"]
    with theirs:
        assert theirs.recv(1) == b""  # the engine process knows it, too
