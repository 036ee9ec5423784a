"""The thread of large requests: they are parsed and handled there, and only admitted and awaited in the event loop."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Move:
    """Awaited by a handler that runs in the thread: what follows runs in the event loop, or in the thread again."""

    __slots__ = ("is_to_thread",)

    def __init__(self, *, is_to_thread: bool) -> None:
        self.is_to_thread = is_to_thread

    def __await__(self) -> Generator[Move, None, None]:
        yield self


TO_LOOP, TO_THREAD = Move(is_to_thread=False), Move(is_to_thread=True)


class Movable(Protocol):
    is_in_thread: bool


async def run_in_parser_thread(function: Callable[..., T], *args: Any) -> T:
    """Run a function in a thread of its own: between its steps, the event loop gets the interpreter."""
    return await asyncio.get_running_loop().run_in_executor(get_parser_thread(), function, *args)


@cache
def get_parser_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="cenote-parser")


@types.coroutine
def handle_in_thread(work: Coroutine[Any, Any, T], context: Movable) -> Generator[Any, Any, T]:
    """Run a coroutine in the parser thread, except between its `TO_LOOP` and `TO_THREAD`.

    The thread has no event loop: a coroutine that starts tasks or makes futures there raises RuntimeError.
    """
    context.is_in_thread = True
    error: BaseException | None = None
    while True:
        if context.is_in_thread:
            is_done, value, error = yield from _step_in_thread(work, error).__await__()
        else:
            is_done, value = _step(work, error)
            error = None
        if is_done:
            return value  # type: ignore[no-any-return]
        if isinstance(value, Move):
            context.is_in_thread = value.is_to_thread
        elif error is None:
            try:
                yield value  # a future, or None: control returns to the event loop
            except BaseException as raised:  # is raised where the coroutine waits
                error = raised


def _step(work: Coroutine[Any, Any, Any], error: BaseException | None) -> tuple[bool, Any]:
    """Run a coroutine until it waits; return whether it has ended, and its result or what it waits for."""
    try:
        return False, work.send(None) if error is None else work.throw(error)
    except StopIteration as done:
        return True, done.value


async def _step_in_thread(
    work: Coroutine[Any, Any, Any], error: BaseException | None
) -> tuple[bool, Any, asyncio.CancelledError | None]:
    """Like `_step`; a cancellation waits for the end of the step, and is the error of the next one."""
    future = asyncio.get_running_loop().run_in_executor(get_parser_thread(), _step, work, error)
    cancelled: asyncio.CancelledError | None = None
    while True:
        try:
            is_done, value = await asyncio.shield(future)
        except asyncio.CancelledError as raised:
            if future.done():  # by the coroutine itself, or the thread has ended with the server
                raise
            cancelled = raised
            continue
        if is_done and cancelled is not None:
            raise cancelled
        return is_done, value, cancelled
