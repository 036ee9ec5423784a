"""RequestFuture: how a request ends, for threads and event loops."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress

logger = logging.getLogger("cenote")

DoneCallback = Callable[["RequestFuture"], None]


class RequestFuture:
    """A concurrent.futures.Future without a value and without a condition variable.

    Results take another way, and threads that wait for them wait there: making and notifying a condition for nobody
    would take a tenth of the engine's time for one text.
    """

    __slots__ = ("_callbacks", "_error", "_is_done", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_done = False
        self._error: BaseException | None = None
        self._callbacks: list[DoneCallback] = []

    def done(self) -> bool:
        return self._is_done

    def cancelled(self) -> bool:
        return isinstance(self._error, CancelledError)

    def exception(self) -> BaseException | None:
        """Return the error of a request that has ended; CancelledError if it was cancelled."""
        return self._error

    def finish(self, error: BaseException | None = None) -> bool:
        """End with success or an error; return False if it had ended before, such as by a cancellation."""
        with self._lock:
            if is_first := not self._is_done:
                self._error, self._is_done = error, True
        while self._callbacks:  # also if it had ended before: Ctrl-C may have interrupted the thread that called them
            try:
                callback = self._callbacks.pop(0)
            except IndexError:  # another thread calls the last one
                break
            self._call(callback)
        return is_first

    def cancel(self) -> bool:
        return self.finish(CancelledError())

    def add_done_callback(self, callback: DoneCallback) -> None:
        """Have `callback` called by the thread that ends the request; at once if it has ended."""
        with self._lock:
            if not self._is_done:
                self._callbacks.append(callback)
                return
        self._call(callback)

    def result(self, timeout: float | None = None) -> None:
        """Block until the request has ended; raise its error, or TimeoutError."""
        if not self._is_done:
            ended = threading.Event()
            self.add_done_callback(lambda _: ended.set())
            if not ended.wait(timeout):
                raise TimeoutError
        if self._error is not None:
            raise self._error

    async def wait(self) -> None:
        """Wait in an event loop until the request has ended; raise its error. Cancelling the call cancels it."""
        if not self._is_done:
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()

            def wake_up(_: RequestFuture) -> None:
                with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(_set_done, waiter)

            self.add_done_callback(wake_up)
            try:
                await waiter
            except asyncio.CancelledError:
                self.cancel()
                raise
        if self.cancelled():
            raise asyncio.CancelledError
        if self._error is not None:
            raise self._error

    def _call(self, callback: DoneCallback) -> None:
        try:
            callback(self)
        except Exception:  # the thread has other requests to end
            logger.exception("a callback of a request has failed")


def _set_done(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
