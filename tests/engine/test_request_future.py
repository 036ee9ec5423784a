"""A request ends once, however many threads try to end it; everybody who waits is told."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from cenote.engine.request_future import RequestFuture


def test_only_the_first_end_counts() -> None:
    future = RequestFuture()

    assert not future.done()
    assert future.finish()
    assert not future.finish(ValueError("too late"))
    assert not future.cancel()
    assert future.done() and not future.cancelled() and future.exception() is None
    future.result(timeout=0)


@pytest.mark.parametrize("repetition", range(50))
def test_of_many_threads_one_ends_it_and_every_callback_is_called_once(repetition: int) -> None:
    future, called = RequestFuture(), list[int]()
    start = threading.Barrier(8)

    def end(number: int) -> bool:
        start.wait()
        future.add_done_callback(lambda _: called.append(number))
        return future.cancel() if number % 2 else future.finish()

    with ThreadPoolExecutor(8) as pool:
        ended = list(pool.map(end, range(8)))

    assert ended.count(True) == 1
    assert sorted(called) == [*range(8)]


def test_the_error_is_raised_in_the_thread_that_waits() -> None:
    future = RequestFuture()
    threading.Timer(0.05, future.finish, [ValueError("broken")]).start()

    with pytest.raises(ValueError, match="broken"):
        future.result(timeout=10)


def test_a_wait_that_takes_too_long_ends() -> None:
    with pytest.raises(TimeoutError):
        RequestFuture().result(timeout=0.01)


def test_a_cancelled_request_raises_in_a_thread() -> None:
    future = RequestFuture()
    future.cancel()

    assert future.cancelled()
    with pytest.raises(CancelledError):
        future.result(timeout=0)


def test_a_callback_that_is_added_late_is_called_at_once() -> None:
    future, called = RequestFuture(), list[RequestFuture]()
    future.finish()
    future.add_done_callback(called.append)

    assert called == [future]


def test_a_callback_that_fails_does_not_keep_others_from_being_called(caplog: pytest.LogCaptureFixture) -> None:
    future, called = RequestFuture(), list[RequestFuture]()

    def fail(_: RequestFuture) -> None:
        raise RuntimeError("no")

    future.add_done_callback(fail)
    future.add_done_callback(called.append)
    with caplog.at_level(logging.ERROR, "cenote"):
        assert future.finish()

    assert called == [future]
    assert "a callback of a request has failed" in caplog.text


def test_callbacks_that_an_interrupted_thread_has_not_called_are_called_by_the_next_one() -> None:
    future, called = RequestFuture(), list[RequestFuture]()

    def interrupt(_: RequestFuture) -> None:
        raise KeyboardInterrupt

    future.add_done_callback(interrupt)
    future.add_done_callback(called.append)
    with pytest.raises(KeyboardInterrupt):
        future.finish()
    assert not called

    assert not future.cancel()
    assert called == [future]
    assert not future.cancelled()


async def test_an_event_loop_waits_for_the_end_in_another_thread() -> None:
    future = RequestFuture()
    threading.Timer(0.05, future.finish).start()
    began = time.monotonic()
    await asyncio.wait_for(future.wait(), 10)
    result = time.monotonic() - began

    assert result >= 0.04


def test_an_event_loop_gets_the_error() -> None:
    async def wait(*, ends_first: bool) -> None:
        future = RequestFuture()
        asyncio.get_running_loop().call_later(0 if ends_first else 0.02, future.finish, ValueError("broken"))
        await asyncio.sleep(0.01)
        await future.wait()

    for ends_first in (True, False):
        with pytest.raises(ValueError, match="broken"):
            asyncio.run(wait(ends_first=ends_first))


async def test_cancelling_the_wait_cancels_the_request() -> None:
    future = RequestFuture()
    task = asyncio.create_task(future.wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert future.cancelled()


async def test_a_request_that_another_thread_cancels_cancels_the_wait() -> None:
    future = RequestFuture()
    threading.Timer(0.02, future.cancel).start()
    with pytest.raises(asyncio.CancelledError):
        await future.wait()


def test_a_request_may_end_after_the_event_loop_is_closed() -> None:
    future = RequestFuture()
    loop = asyncio.new_event_loop()
    task = loop.create_task(future.wait())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert future.finish()
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # it never ends
