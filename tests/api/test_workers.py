"""Front-end processes that do not come up, or not at once."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest

from cenote.api import workers
from cenote.api.service import Service
from cenote.api.workers import FrontEnds
from cenote.config import ServerConfig
from cenote.errors import PoolingError

Spawned = tuple[subprocess.Popen[bytes], socket.socket]


def never() -> None:
    raise AssertionError("nobody is aboard")


def spawning(code: str) -> Any:
    """In place of a front-end, a process that does something else with its end of the line."""

    def spawn(listeners: Sequence[socket.socket]) -> Spawned:
        here, there = socket.socketpair()
        with there:
            process = subprocess.Popen([sys.executable, "-S", "-c", code], pass_fds=[there.fileno()])
        here.setblocking(False)
        return process, here

    return spawn


def test_front_ends_that_never_come_up_end_the_server_after_a_few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "spawn", spawning("raise SystemExit(3)"))
    failures: list[BaseException] = []

    async def start() -> None:
        given_up = asyncio.Event()

        def failed(error: BaseException) -> None:
            failures.append(error)
            given_up.set()

        front_ends = FrontEnds(Service(ServerConfig(api_server_count=2)), [], never, failed)
        front_ends.start()
        await asyncio.wait_for(given_up.wait(), 60)
        await front_ends.drain()

    asyncio.run(start())
    assert isinstance(failures[0], PoolingError)
    assert "front-end processes end before they listen" in str(failures[0])
    assert "status 3" in str(failures[0])


def test_a_system_without_room_for_a_process_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[float] = []

    def no_room(listeners: Sequence[socket.socket]) -> Spawned:
        tries.append(time.monotonic())
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(workers, "spawn", no_room)

    async def start() -> None:
        failed = asyncio.Event()
        front_ends = FrontEnds(Service(ServerConfig(api_server_count=1)), [], never, lambda error: failed.set())
        front_ends.start()
        await asyncio.wait_for(failed.wait(), 60)
        await front_ends.drain()

    asyncio.run(start())
    assert len(tries) == workers.NUM_TRIES
    assert tries[2] - tries[1] > 1.5 * (tries[1] - tries[0])  # every time a longer pause
    assert "could not be started (Resource temporarily unavailable)" in caplog.text


def test_a_front_end_that_does_not_end_in_time_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "spawn", spawning("import time; time.sleep(600)"))
    monkeypatch.setattr(workers, "MARGIN_S", 0.2)
    processes: list[subprocess.Popen[bytes]] = []

    async def start() -> None:
        settings = ServerConfig(api_server_count=2, shutdown_delay_s=0.0, shutdown_timeout_s=0.1)
        front_ends = FrontEnds(Service(settings), [], never, lambda error: None)
        front_ends.start()
        while len(front_ends.running) < 2:
            await asyncio.sleep(0.01)
        processes.extend(front_end.process for front_end in front_ends.running.values())
        await front_ends.drain()

    asyncio.run(start())
    assert [process.wait(10) for process in processes] == [-9, -9]
