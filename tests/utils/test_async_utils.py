"""Coroutines without an event loop."""

from __future__ import annotations

import asyncio
import operator

import pytest

from cenote.utils.async_utils import gather_or_cancel, run_coroutine_sync, run_inline


async def add(first: int, second: int) -> int:
    return await run_inline(operator.add, first, second)


def test_a_coroutine_that_never_suspends_runs_without_an_event_loop() -> None:
    assert run_coroutine_sync(add(2, 3)) == 5


def test_it_also_runs_inside_a_running_event_loop() -> None:
    async def call() -> int:
        return run_coroutine_sync(add(2, 3))

    assert asyncio.run(call()) == 5


def test_exceptions_reach_the_caller() -> None:
    with pytest.raises(TypeError):
        run_coroutine_sync(add(2, "3"))  # type: ignore[arg-type]


def test_a_coroutine_that_suspends_is_closed_and_raises() -> None:
    events: list[str] = []

    async def suspend() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            events.append("closed")

    with pytest.raises(RuntimeError, match="suspended"):
        run_coroutine_sync(suspend())
    assert events == ["closed"]


def test_works_that_are_gathered_keep_their_order() -> None:
    async def gather() -> list[int]:
        return await gather_or_cancel(add(number, 1) for number in range(3))

    assert asyncio.run(gather()) == [1, 2, 3]


def test_an_error_of_one_work_cancels_the_others_before_it_is_raised() -> None:
    events: list[str] = []

    async def run_long() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            events.append("ended")

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("refused")

    async def gather() -> None:
        with pytest.raises(ValueError, match="refused"):
            await gather_or_cancel([run_long(), fail(), run_long()])
        assert events == ["ended", "ended"]

    asyncio.run(gather())
