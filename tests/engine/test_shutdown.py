"""Engine shutdown and crashes: all requests in flight fail, and later calls fail immediately."""

from __future__ import annotations

import asyncio
import time
from threading import Thread
from typing import Any

import numpy as np
import pytest

from cenote.engine.result_delivery import BatchOutput
from cenote.engine.result_rows import RaggedRows
from cenote.engine.sequence_group import ScheduledBatch
from cenote.errors import EngineStopped, PoolingError
from tests.engine.conftest import BatchGate, MakeEngine, block_engine, echoed_token_ids, make_request, wait_until


class FatalError(BaseException):
    """An exception that `except Exception` does not catch."""


def raise_fatal(*args: Any) -> None:
    raise FatalError("out of the blue")


def test_stop_fails_requests_in_flight_and_later_calls_at_once(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate, max_num_batched_tokens=8)
    # one runs, some are queued, some are not tokenized yet
    callers = [engine.submit(make_request([[7]] * 50)) for _ in range(20)]
    assert gate.reached.wait(10)
    assert engine.has_unfinished_requests()

    stopping = Thread(target=engine.stop)  # it waits for the running batch
    stopping.start()

    for caller in callers:
        with pytest.raises(EngineStopped, match="the engine was stopped before the request finished"):
            caller.future.result(timeout=2)
    started_at = time.monotonic()
    with pytest.raises(EngineStopped):
        engine.pool_sync(make_request([[7]]))
    with pytest.raises(EngineStopped):
        asyncio.run(engine.pool(make_request([[7]])))
    assert time.monotonic() - started_at < 0.5
    gate.opened.set()
    stopping.join()
    assert not engine.is_running


def test_a_second_stop_has_no_effect(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.stop()
    engine.stop(EngineStopped("for another reason"))

    with pytest.raises(EngineStopped, match="the engine was stopped"):
        engine.pool_sync(make_request([[7]]))


def test_the_traceback_of_a_stopped_engine_does_not_grow(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.stop()

    lengths = []
    for _ in range(5):
        with pytest.raises(EngineStopped) as caught:
            engine.submit(make_request([[7]]))
        lengths.append(len(caught.traceback))

    assert len(set(lengths)) == 1


def test_when_the_engine_thread_crashes_all_requests_fail(make_engine: MakeEngine) -> None:
    gate = BatchGate(then=raise_fatal)
    engine = make_engine(fault=gate)
    callers = [engine.submit(make_request([[7]] * 50)) for _ in range(20)]
    assert gate.reached.wait(10)
    gate.opened.set()
    wait_until(lambda: all(caller.future.done() for caller in callers))

    for caller in callers:
        with pytest.raises(EngineStopped, match="the engine crashed: FatalError: out of the blue"):
            caller.future.result(timeout=0)
    with pytest.raises(EngineStopped, match="the engine crashed"):
        engine.pool_sync(make_request([[7]]))


def test_when_the_tokenizer_thread_crashes_all_requests_fail(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate)
    running = block_engine(engine, gate)
    monkeypatch.setattr(engine.core.dedup, "add", raise_fatal)

    with pytest.raises(EngineStopped, match="the engine crashed: FatalError"):
        engine.submit(make_request(["a", "b"])).wait()  # a single text would be rendered by this thread
    with pytest.raises(EngineStopped, match="the engine crashed: FatalError"):
        running.wait()
    gate.opened.set()


def test_an_executor_that_returns_too_few_results_stops_the_engine_with_an_error(make_engine: MakeEngine) -> None:
    class IncompleteExecutor:
        is_async = False

        def start(self, batch: ScheduledBatch) -> Any:
            return lambda: BatchOutput(dict.fromkeys(batch.specs[0], RaggedRows(np.zeros((0, 384), np.float32))))

    with pytest.raises(PoolingError):
        make_engine(IncompleteExecutor()).submit(make_request([[7]])).future.result(timeout=10)


@pytest.mark.parametrize("inputs", [["bad"], ["good", "bad"]])
def test_a_panic_in_rendering_fails_its_input_and_not_the_engine(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, inputs: list[str]
) -> None:
    engine = make_engine()
    render = engine.renderer.render
    with monkeypatch.context() as patch:
        patch.setattr(
            engine.renderer, "render", lambda texts, *args: (raise_fatal if "bad" in texts else render)(texts, *args)
        )
        with pytest.raises(PoolingError, match="the input could not be read: FatalError") as caught:
            engine.pool_sync(make_request(inputs))
        results = engine.pool_sync(make_request(inputs, return_exceptions=True))

    assert caught.value.index == inputs.index("bad")
    assert [isinstance(result, PoolingError) for result in results] == [text == "bad" for text in inputs]

    assert echoed_token_ids(engine.pool_sync(make_request([[7]]))) == [[7]]


def test_a_batch_that_exceeds_the_step_timeout_stops_the_engine(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate, step_timeout_s=0.5)
    callers = [engine.submit(make_request([[7]])) for _ in range(10)]
    assert gate.reached.wait(10)

    started_at = time.monotonic()
    wait_until(lambda: all(caller.future.done() for caller in callers))

    assert time.monotonic() - started_at < 3
    for caller in callers:
        with pytest.raises(EngineStopped, match="a batch did not finish within 0.5 s"):
            caller.future.result(timeout=0)
    with pytest.raises(EngineStopped):
        engine.pool_sync(make_request([[7]]))
    gate.opened.set()  # the batch ends after its requests have failed
    engine.core.loop.thread.join(10)
    assert not engine.core.loop.thread.is_alive()


def test_an_idle_or_slow_engine_is_not_stopped_by_the_watchdog(make_engine: MakeEngine) -> None:
    engine = make_engine(fault=lambda batch: time.sleep(0.15), step_timeout_s=0.5, max_num_seqs=1)

    # longer than the timeout, but not in one batch
    assert echoed_token_ids(engine.pool_sync(make_request([[7]] * 6))) == [[7]] * 6
    time.sleep(0.7)
    assert echoed_token_ids(engine.pool_sync(make_request([[8]]))) == [[8]]


async def test_a_waiting_asyncio_task_fails_when_the_engine_stops(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate)

    calls = [asyncio.create_task(engine.pool(make_request([[number]]))) for number in range(5)]
    while not gate.reached.is_set():
        await asyncio.sleep(0.001)
    stopping = asyncio.create_task(asyncio.to_thread(engine.stop))
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(outcome, EngineStopped)
    gate.opened.set()
    await stopping


def test_stop_during_concurrent_calls_leaves_no_call_waiting(make_engine: MakeEngine) -> None:
    for delay in (0.0, 0.001, 0.003, 0.01):
        engine = make_engine(max_num_batched_tokens=8)

        async def call(number: int, engine: Any = engine) -> bool:
            try:
                return echoed_token_ids(await engine.pool(make_request([[number]]))) == [[number]]
            except EngineStopped:
                return True

        async def call_and_stop(engine: Any = engine, delay: float = delay, call: Any = call) -> list[bool]:
            calls = [asyncio.create_task(call(number)) for number in range(300)]
            await asyncio.sleep(delay)
            await asyncio.to_thread(engine.stop)
            return await asyncio.wait_for(asyncio.gather(*calls), timeout=10)

        assert all(asyncio.run(call_and_stop()))
