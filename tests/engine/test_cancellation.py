"""Cancelled requests: their queued inputs never run."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from cenote.engine.engine import PoolingEngine
from cenote.engine.local_pending import LocalPending
from cenote.engine.sequence_group import ScheduledBatch
from cenote.errors import PoolingError
from tests.engine.conftest import BatchGate, MakeEngine, block_engine, echoed_token_ids, make_request, wait_until

MARKER = 666


def drain_engine(engine: PoolingEngine, gate: BatchGate) -> None:
    """Open the gate and wait until the queue is empty."""
    gate.opened.set()
    assert echoed_token_ids(engine.pool_sync(make_request([[8]]))) == [[8]]
    wait_until(lambda: len(engine.core.loop.scheduler) == 0)


async def test_queued_inputs_of_a_cancelled_task_never_run(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate, max_num_batched_tokens=512)
    block_engine(engine, gate)

    call = asyncio.create_task(engine.pool(make_request([[MARKER] * 3] * 5000)))
    while engine.core.loop.scheduler.num_waiting_tokens == 0:
        await asyncio.sleep(0.001)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    drain_engine(engine, gate)

    assert gate.token_ids == [7, 8]


def test_capacity_is_released_when_all_queued_requests_are_aborted(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate, max_num_batched_tokens=64)
    block_engine(engine, gate)
    cancelled = engine.submit(make_request([[2000 + number] + [MARKER] * 59 for number in range(300)]))
    wait_until(lambda: engine.core.loop.scheduler.num_waiting_tokens >= engine.tokenizer_worker.max_waiting_tokens)
    following = engine.submit(make_request([[9]]))  # tokenized after a slice for which the queue has no capacity

    cancelled.future.cancel()
    gate.opened.set()

    following.future.result(timeout=10)
    assert echoed_token_ids(following.wait()) == [[9]]


async def test_a_timeout_of_the_caller_cancels_queued_inputs(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate)
    block_engine(engine, gate)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(engine.pool(make_request([[MARKER]])), timeout=0.05)
    drain_engine(engine, gate)

    assert MARKER not in gate.token_ids


def test_ctrl_c_aborts_queued_inputs(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate)
    block_engine(engine, gate)
    calls = 0

    def interrupt(state: LocalPending) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:  # called at the start, then every 0.1 s
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.pool_sync(make_request([[MARKER]] * 300), interrupt)
    drain_engine(engine, gate)

    assert MARKER not in gate.token_ids


@pytest.mark.parametrize("inputs", [["one text"], ["two", "texts"], [[1, 2, 3]]])
def test_a_request_that_is_interrupted_while_it_is_submitted_is_not_in_flight(
    make_engine: MakeEngine, inputs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine.tokenizer_worker, "add", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.submit(make_request(inputs))

    assert not engine.has_unfinished_requests()
    assert engine.metrics.num_in_flight_chars == 0
    assert echoed_token_ids(engine.pool_sync(make_request([[7]]))) == [[7]]


def test_the_other_inputs_of_a_failed_request_do_not_run(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate)
    block_engine(engine, gate)
    state = engine.submit(make_request([[MARKER]] * 1000 + [[-1]]))
    with pytest.raises(PoolingError, match="out of vocabulary"):
        state.wait()
    drain_engine(engine, gate)

    assert MARKER not in gate.token_ids


async def test_cancelled_requests_do_not_affect_other_requests(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_batched_tokens=64)

    async def call(number: int) -> bool:
        inputs = [[number, index] for index in range(20)]
        return echoed_token_ids(await engine.pool(make_request(inputs))) == inputs

    async def call_and_cancel(number: int) -> bool:
        task = asyncio.create_task(call(number))
        await asyncio.sleep(number % 7 / 1000)
        return task.cancel() or True

    result = await asyncio.gather(*(call(n) if n % 3 == 0 else call_and_cancel(n) for n in range(300)))

    assert all(result)


# a caller may cancel at any moment, also between `done()` and `finish()`


class RacingFuture:
    """A future that is cancelled right after its state was checked."""

    def __init__(self, state: LocalPending) -> None:
        self.future = state.future

    def done(self) -> bool:
        was_done = self.future.done()
        self.future.cancel()
        return was_done

    def __getattr__(self, name: str) -> Any:
        self.future.cancel()
        return getattr(self.future, name)


@pytest.mark.parametrize("failing", [False, True])
def test_a_result_for_a_cancelled_request_is_dropped(make_engine: MakeEngine, failing: bool) -> None:
    gate = BatchGate()
    released = threading.Event()

    def fault(batch: ScheduledBatch) -> None:
        gate(batch)
        if failing:
            raise RuntimeError("poisoned")

    engine = make_engine(fault=fault)
    state = engine.submit(make_request([[7]]))
    assert gate.reached.wait(10)
    state.future.add_done_callback(lambda _: released.set())
    state.future = RacingFuture(state)  # type: ignore[assignment]
    gate.opened.set()
    assert released.wait(10)

    assert engine.core.loop.thread.is_alive()
    if not failing:
        assert echoed_token_ids(engine.pool_sync(make_request([[8]]))) == [[8]]
    assert engine.dead_error is None


def test_the_progress_callback_is_called_at_the_start_and_the_end(make_engine: MakeEngine) -> None:
    updates: list[tuple[int, int, int]] = []

    make_engine().pool_sync(
        make_request([[7, 8]] * 30),
        lambda state: updates.append((state.num_done, state.num_inputs, state.num_tokens)),
    )

    assert updates[0][1] == 30
    assert updates[-1] == (30, 30, 60)
