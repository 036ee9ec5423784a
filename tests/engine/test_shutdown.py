"""The end of an engine, wished for or not: everybody who waits is told, and later callers at once."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import wait
from threading import Thread
from typing import Any

import pytest
import torch

from cenote.engine.result_delivery import Outcome
from cenote.engine.sequence_group import Batch, Rows
from cenote.errors import EngineStopped, PoolingError
from tests.engine.conftest import Gate, MakeEngine, asking, echoed


class Death(BaseException):
    """What no `except Exception` catches."""


def die(*args: Any) -> None:
    raise Death("out of the blue")


def test_stopping_answers_everybody_and_later_calls_at_once(make_engine: MakeEngine) -> None:
    gate = Gate()
    engine = make_engine(fault=gate, max_num_batched_tokens=8)
    callers = [engine.submit(asking([[7]] * 50)) for _ in range(20)]  # one runs, some wait, some are not rendered yet
    assert gate.reached.wait(10)

    stopping = Thread(target=engine.stop)  # it waits a while for the batch that runs
    stopping.start()

    for caller in callers:
        with pytest.raises(EngineStopped, match="the engine was stopped before the answer came"):
            caller.future.result(timeout=2)
    began = time.monotonic()
    with pytest.raises(EngineStopped):
        engine.pool_sync(asking([[7]]))
    with pytest.raises(EngineStopped):
        asyncio.run(engine.pool(asking([[7]])))
    assert time.monotonic() - began < 0.5
    gate.opened.set()
    stopping.join()
    assert not any(part.thread.is_alive() for part in (engine.loop, engine.intake, engine.watchdog))


def test_stopping_twice_is_stopping_once(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.stop()
    engine.stop(EngineStopped("for another reason"))

    with pytest.raises(EngineStopped, match="the engine was stopped"):
        engine.pool_sync(asking([[7]]))


def test_a_stopped_engine_says_so_without_growing(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.stop()

    lengths = []
    for _ in range(5):
        with pytest.raises(EngineStopped) as caught:
            engine.submit(asking([[7]]))
        lengths.append(len(caught.traceback))

    assert len(set(lengths)) == 1


def test_when_the_engine_thread_dies_everybody_is_told(make_engine: MakeEngine) -> None:
    gate = Gate()

    def fault(batch: Batch) -> None:
        gate(batch)
        die()

    engine = make_engine(fault=fault)
    callers = [engine.submit(asking([[7]] * 50)) for _ in range(20)]
    assert gate.reached.wait(10)
    gate.opened.set()
    wait([caller.future for caller in callers], timeout=10)

    for caller in callers:
        with pytest.raises(EngineStopped, match="the engine died: Death: out of the blue"):
            caller.future.result(timeout=0)
    with pytest.raises(EngineStopped, match="the engine died"):
        engine.pool_sync(asking([[7]]))


def test_when_the_rendering_thread_dies_everybody_is_told(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    engine = make_engine(fault=gate)
    running = engine.submit(asking([[7]]))
    assert gate.reached.wait(10)
    monkeypatch.setattr(engine.renderer, "render", die)

    with pytest.raises(EngineStopped, match="the engine died: Death"):
        engine.submit(asking(["a"])).wait()
    with pytest.raises(EngineStopped, match="the engine died: Death"):
        running.wait()
    gate.opened.set()


def test_an_executor_with_too_few_answers_ends_the_engine_and_not_in_silence(make_engine: MakeEngine) -> None:
    class Forgetful:
        overlapping = False

        def start(self, batch: Batch) -> Any:
            return lambda: Outcome(dict.fromkeys(batch.asks[0], Rows(torch.zeros(0, 384))))

    with pytest.raises(PoolingError):
        make_engine(Forgetful()).submit(asking([[7]])).future.result(timeout=10)


def test_a_bug_in_rendering_fails_its_request_and_not_the_engine(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    with monkeypatch.context() as patch:
        patch.setattr(engine.renderer, "render", lambda *args: 1 / 0)
        with pytest.raises(PoolingError, match="the input could not be read: ZeroDivisionError"):
            engine.pool_sync(asking(["a"]))

    assert echoed(engine.pool_sync(asking([[7]]))) == [[7]]


def test_a_batch_that_never_ends_is_given_up(make_engine: MakeEngine) -> None:
    gate = Gate()
    engine = make_engine(fault=gate, step_timeout_s=0.5)
    callers = [engine.submit(asking([[7]])) for _ in range(10)]
    assert gate.reached.wait(10)

    began = time.monotonic()
    wait([caller.future for caller in callers], timeout=10)

    assert time.monotonic() - began < 3
    for caller in callers:
        with pytest.raises(EngineStopped, match="a batch did not finish in 0.5 s"):
            caller.future.result(timeout=0)
    with pytest.raises(EngineStopped):
        engine.pool_sync(asking([[7]]))
    gate.opened.set()  # the device wakes up after all, and finds nobody
    engine.loop.thread.join(10)
    assert not engine.loop.thread.is_alive()


def test_an_idle_engine_and_a_slow_one_are_left_alone(make_engine: MakeEngine) -> None:
    engine = make_engine(fault=lambda batch: time.sleep(0.15), step_timeout_s=0.5, max_num_seqs=1)

    assert echoed(engine.pool_sync(asking([[7]] * 6))) == [[7]] * 6  # longer than the limit, but not in one batch
    time.sleep(0.7)
    assert echoed(engine.pool_sync(asking([[8]]))) == [[8]]


def test_a_waiting_task_hears_of_the_end(make_engine: MakeEngine) -> None:
    gate = Gate()
    engine = make_engine(fault=gate)

    async def call_and_stop() -> None:
        calls = [asyncio.create_task(engine.pool(asking([[number]]))) for number in range(5)]
        while not gate.reached.is_set():
            await asyncio.sleep(0.001)
        stopping = asyncio.create_task(asyncio.to_thread(engine.stop))
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, EngineStopped)
        gate.opened.set()
        await stopping

    asyncio.run(call_and_stop())


def test_stopping_while_others_call_leaves_nobody_waiting(make_engine: MakeEngine) -> None:
    for delay in (0.0, 0.001, 0.003, 0.01):
        engine = make_engine(max_num_batched_tokens=8)

        async def call(number: int, engine: Any = engine) -> bool:
            try:
                return echoed(await engine.pool(asking([[number]]))) == [[number]]
            except EngineStopped:
                return True

        async def everybody(engine: Any = engine, delay: float = delay, call: Any = call) -> list[bool]:
            calls = [asyncio.create_task(call(number)) for number in range(300)]
            await asyncio.sleep(delay)
            await asyncio.to_thread(engine.stop)
            return await asyncio.wait_for(asyncio.gather(*calls), timeout=10)

        assert all(asyncio.run(everybody()))
