"""BoundedExecutor: threads for one kind of work, so that no kind waits for another, with a limit on what waits."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

from cenote.errors import Overloaded

P = ParamSpec("P")
T = TypeVar("T")


class RunInThread(Protocol):
    """Runs a function outside of the event loop, or in the calling thread where the caller blocks anyway."""

    def __call__(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]: ...


class BoundedExecutor:
    """Used in place of `asyncio.to_thread`, whose threads all work of a process shares, with a queue of any length."""

    def __init__(self, name: str, *, num_threads: int, max_waiting: int) -> None:
        self.name = name
        self.num_threads = num_threads
        self.max_waiting = max_waiting
        self._num_pending = 0  # calls that run or wait
        self._lock = threading.Lock()
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix=f"cenote-{name}")

    @property
    def num_waiting(self) -> int:
        return max(0, self._num_pending - self.num_threads)

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a function that runs in a thread; raise Overloaded if too many calls wait."""
        return await self._submit(True, partial(function, *args, **kwargs))

    async def run_admitted(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """As `run`, for a request that has been admitted: it waits rather than fail half-way."""
        return await self._submit(False, partial(function, *args, **kwargs))

    def make_runner(self) -> RunInThread:
        """Return a function that runs the calls of one request: the first may be refused, the others are not."""
        is_admitted = False

        def run_next(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
            nonlocal is_admitted
            check_capacity, is_admitted = not is_admitted, True
            return self._submit(check_capacity, partial(function, *args, **kwargs))

        return run_next

    def close(self) -> None:
        """Drop the calls that no thread has started."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _submit(self, check_capacity: bool, call: Callable[[], T]) -> asyncio.Future[T]:
        with self._lock:
            if check_capacity and self.num_waiting >= self.max_waiting:
                raise Overloaded(
                    f"overloaded: {self.num_waiting} calls wait for the {self.name} threads, limit {self.max_waiting}; "
                    "retry later"
                )
            self._num_pending += 1
        try:
            future = self._executor.submit(contextvars.copy_context().run, call)
        except BaseException:
            self._on_done(None)
            raise
        future.add_done_callback(self._on_done)
        return asyncio.wrap_future(future)

    def _on_done(self, future: Future[Any] | None) -> None:
        with self._lock:
            self._num_pending -= 1
