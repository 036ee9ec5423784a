"""Coroutines without an event loop."""

from __future__ import annotations

import asyncio
import operator

import pytest

from cenote.utils.async_utils import run_coroutine_sync, run_inline


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
