"""BoundedExecutor: limits, calls of admitted requests, and that nothing uses the event loop's default executor."""

from __future__ import annotations

import ast
import asyncio
import threading
from contextvars import ContextVar
from pathlib import Path

import pytest

from cenote.errors import Overloaded
from cenote.utils.bounded_executor import BoundedExecutor

ROOT = Path(__file__).parents[2]
VARIABLE = ContextVar("VARIABLE", default="")


def test_more_calls_than_the_limit_are_refused_and_those_of_admitted_requests_wait() -> None:
    executor, opened = BoundedExecutor("test", num_threads=1, max_waiting=2), threading.Event()

    async def fill() -> list[bool]:
        run_next = executor.make_runner()
        calls = [asyncio.ensure_future(run_next(opened.wait, 20))]
        calls += [asyncio.create_task(executor.run(opened.wait, 20)) for _ in range(2)]
        await asyncio.sleep(0)
        assert executor.num_waiting == 2
        with pytest.raises(Overloaded, match="2 calls wait for the test threads, limit 2; retry later"):
            await executor.run(opened.wait, 20)
        with pytest.raises(Overloaded):
            await executor.make_runner()(opened.wait, 20)
        calls += [asyncio.create_task(executor.run_admitted(opened.wait, 20))]
        calls += [asyncio.ensure_future(run_next(opened.wait, 20))]
        await asyncio.sleep(0)
        assert executor.num_waiting == 4
        opened.set()
        return await asyncio.gather(*calls)

    assert asyncio.run(fill()) == [True] * 5
    assert executor.num_waiting == 0
    executor.close()


def test_a_call_sees_the_context_of_its_caller_and_raises_to_it() -> None:
    executor = BoundedExecutor("test", num_threads=1, max_waiting=2)

    async def call() -> str:
        VARIABLE.set("here")
        with pytest.raises(ZeroDivisionError):
            await executor.run(lambda: 1 // 0)
        return await executor.run(VARIABLE.get)

    assert asyncio.run(call()) == "here"
    executor.close()


def test_no_module_uses_the_default_executor_of_the_event_loop() -> None:
    """All work of a process shares its threads and its queue: long work would stop everything else."""
    found = []
    for path in (ROOT / "cenote").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_default = isinstance(node, ast.Call) and node.args and getattr(node.args[0], "value", 0) is None
            name = getattr(node, "attr", getattr(node, "id", ""))
            if name == "to_thread" or (is_default and getattr(node.func, "attr", "") == "run_in_executor"):  # type: ignore[attr-defined]
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")  # type: ignore[attr-defined]

    assert found == []
