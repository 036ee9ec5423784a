"""Callers that go away: what they left waiting never runs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from cenote.engine.engine import PoolingEngine
from cenote.engine.request_state import Pending
from cenote.engine.sequence_group import Batch
from cenote.errors import PoolingError
from tests.engine.conftest import Gate, MakeEngine, asking, echoed, wait_until

MARKER = 666


def hold(engine: PoolingEngine, gate: Gate) -> Pending:
    """Something that runs, so that whatever comes next must wait."""
    pending = engine.submit(asking([[7]]))
    assert gate.reached.wait(10)
    return pending


def finish(engine: PoolingEngine, gate: Gate) -> None:
    """Let everything run that still wants to."""
    gate.opened.set()
    assert echoed(engine.pool_sync(asking([[8]]))) == [[8]]
    wait_until(lambda: len(engine.loop.scheduler) == 0)


def test_what_a_cancelled_task_left_waiting_never_runs(make_engine: MakeEngine) -> None:
    gate = Gate()
    engine = make_engine(fault=gate, max_num_batched_tokens=512)
    hold(engine, gate)

    async def leave_early() -> None:
        call = asyncio.create_task(engine.pool(asking([[MARKER] * 3] * 5000)))
        while engine.loop.scheduler.waiting_tokens == 0:
            await asyncio.sleep(0.001)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(leave_early())
    finish(engine, gate)

    assert gate.passed == [7, 8]


def test_who_waits_for_room_gets_it_when_all_that_waited_was_abandoned(make_engine: MakeEngine) -> None:
    gate = Gate()
    engine = make_engine(fault=gate, max_num_batched_tokens=64)
    hold(engine, gate)
    left = engine.submit(asking([[2000 + number] + [MARKER] * 59 for number in range(300)]))
    wait_until(lambda: engine.loop.scheduler.waiting_tokens >= engine.intake.max_waiting_tokens)
    following = engine.submit(asking([[9]]))  # its turn comes after a slice that finds no room

    left.future.cancel()
    gate.opened.set()

    following.future.result(timeout=10)
    assert echoed(following.wait()) == [[9]]


def test_a_time_limit_of_the_caller_works_the_same_way(make_engine: MakeEngine) -> None:
    gate = Gate()
    engine = make_engine(fault=gate)
    hold(engine, gate)

    async def impatient() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.pool(asking([[MARKER]])), timeout=0.05)

    asyncio.run(impatient())
    finish(engine, gate)

    assert MARKER not in gate.passed


def test_ctrl_c_abandons_what_waits(make_engine: MakeEngine) -> None:
    gate = Gate()
    engine = make_engine(fault=gate)
    hold(engine, gate)
    calls = 0

    def interrupt(pending: Pending) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:  # first the start, then every tenth of a second
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.pool_sync(asking([[MARKER]] * 300), interrupt)
    finish(engine, gate)

    assert MARKER not in gate.passed


def test_a_request_that_failed_wastes_no_more_work(make_engine: MakeEngine) -> None:
    gate = Gate()
    engine = make_engine(fault=gate)
    hold(engine, gate)
    pending = engine.submit(asking([[MARKER]] * 1000 + [[-1]]))
    with pytest.raises(PoolingError, match="out of vocabulary"):
        pending.wait()
    finish(engine, gate)

    assert MARKER not in gate.passed


def test_callers_that_leave_all_the_time_do_not_disturb_those_who_stay(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_batched_tokens=64)

    async def stay(number: int) -> bool:
        inputs = [[number, place] for place in range(20)]
        return echoed(await engine.pool(asking(inputs))) == inputs

    async def leave(number: int) -> bool:
        call = asyncio.create_task(stay(number))
        await asyncio.sleep(number % 7 / 1000)
        return call.cancel() or True

    async def everybody() -> list[bool]:
        return await asyncio.gather(*(stay(n) if n % 3 == 0 else leave(n) for n in range(300)))

    assert all(asyncio.run(everybody()))


# a caller may leave at any moment, even between our look at the future and our word to it


class Racing:
    """A future whose caller cancels it right after anybody has looked whether it is done."""

    def __init__(self, pending: Pending) -> None:
        self.future = pending.future

    def done(self) -> bool:
        was_done = self.future.done()
        self.future.cancel()
        return was_done

    def __getattr__(self, name: str) -> Any:
        self.future.cancel()
        return getattr(self.future, name)


@pytest.mark.parametrize("failing", [False, True])
def test_an_answer_to_somebody_who_has_just_left_is_dropped(make_engine: MakeEngine, failing: bool) -> None:
    gate = Gate()
    released = threading.Event()

    def fault(batch: Batch) -> None:
        gate(batch)
        if failing:
            raise RuntimeError("poisoned")

    engine = make_engine(fault=fault)
    pending = engine.submit(asking([[7]]))
    assert gate.reached.wait(10)
    pending.future.add_done_callback(lambda _: released.set())
    pending.future = Racing(pending)  # type: ignore[assignment]
    gate.opened.set()
    assert released.wait(10)

    assert engine.loop.thread.is_alive()
    if not failing:
        assert echoed(engine.pool_sync(asking([[8]]))) == [[8]]
    assert engine.dead is None


def test_the_progress_callback_hears_of_the_start_and_the_end(make_engine: MakeEngine) -> None:
    heard: list[tuple[int, int, int]] = []

    make_engine().pool_sync(
        asking([[7, 8]] * 30), lambda pending: heard.append((pending.num_done, pending.size, pending.num_tokens))
    )

    assert heard[0][1] == 30
    assert heard[-1] == (30, 30, 60)
