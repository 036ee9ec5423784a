"""The timer of a connection, and that a closed connection leaves nothing for garbage collection."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from cenote.api.http import connection as connection_module
from cenote.api.http.connection import HttpConnection
from cenote.api.http.deadline_timer import DeadlineTimer
from cenote.api.http.server_state import ServerState

from .memory_transport import MemoryTransport, echo, exchange_bytes, list_statuses

GET = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"


async def test_a_postponed_deadline_keeps_the_timer_of_the_event_loop() -> None:
    loop = asyncio.get_running_loop()
    expired: list[float] = []
    started_at = loop.time()
    timer = DeadlineTimer(loop, lambda: expired.append(loop.time() - started_at))
    timer.set(0.1)
    handle = timer.handle
    timer.set(0.3)
    assert timer.handle is handle
    await asyncio.sleep(0.2)
    assert not expired
    await asyncio.sleep(0.4)
    (expired_s,) = expired
    assert expired_s == pytest.approx(0.3, abs=0.2) and expired_s > 0.29


async def test_an_earlier_deadline_is_kept_and_a_cleared_one_does_not_expire() -> None:
    loop = asyncio.get_running_loop()
    expired: list[str] = []
    earlier = DeadlineTimer(loop, lambda: expired.append("earlier"))
    earlier.set(60)
    earlier.set(0.05)
    cleared = DeadlineTimer(loop, lambda: expired.append("cleared"))
    cleared.set(0.05)
    cleared.clear()
    cancelled = DeadlineTimer(loop, lambda: expired.append("cancelled"))
    cancelled.set(0.05)
    cancelled.cancel()
    await asyncio.sleep(0.3)

    assert expired == ["earlier"]


def test_a_closed_connection_is_freed_without_garbage_collection() -> None:
    async def run() -> bool:
        state = ServerState(echo)
        connection = HttpConnection(state)
        connection.connection_made(MemoryTransport())  # type: ignore[arg-type]
        for data in (GET + GET, GET[:10]):
            connection.data_received(data)
            for _ in range(10):
                await asyncio.sleep(0)
        assert not state.tasks and connection.timer.handle is not None
        connection.connection_lost(None)
        await asyncio.sleep(0)
        reference = weakref.ref(connection)
        del connection
        return reference() is None

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(run())
    finally:
        gc.enable()


def test_a_defect_of_the_parser_callbacks_is_logged_and_is_not_blamed_on_the_client(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(headers: object, http_version: str) -> None:
        raise KeyError("defect")

    monkeypatch.setattr(connection_module, "check_headers", fail)

    responses, is_closed = exchange_bytes([GET + GET])

    assert list_statuses(responses) == [500] and is_closed
    assert "KeyError: 'defect'" in caplog.text
