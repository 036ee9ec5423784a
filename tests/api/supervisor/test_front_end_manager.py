"""Front-end processes that do not start, or not at the first attempt, and those that hang."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from cenote.api.admission.counters import Counters, make_counters_file
from cenote.api.server_context import ServerContext
from cenote.api.supervisor import child, front_end_child, restart_policy
from cenote.api.supervisor import front_end_manager as manager
from cenote.api.supervisor.front_end_child import FrontEndChild
from cenote.api.supervisor.front_end_manager import FrontEndManager
from cenote.api.wire import heartbeat
from cenote.api.wire.control_messages import EngineState, Listening, ReleaseEngine
from cenote.api.wire.heartbeat import Beat
from cenote.config.server import ServerConfig
from cenote.errors import PoolingError

from .stub_engine import encode_frame

Spawned = subprocess.Popen[bytes]


def make_manager(settings: ServerConfig, on_failed: Callable[[BaseException], None]) -> FrontEndManager:
    def fail_if_called(*args: object) -> Any:
        raise AssertionError("no front-end is ready, and there is no engine")

    counters_fd = make_counters_file(settings.api_server_count)
    supervisor: Any = SimpleNamespace(
        context=ServerContext(settings, Counters(counters_fd, settings.api_server_count, row=None)),
        add_engine_link=fail_if_called,
        on_all_ready=fail_if_called,
        on_failed=on_failed,
    )
    return FrontEndManager(supervisor, counters_fd, [])


async def wait_until_listening(front_ends: FrontEndManager) -> None:
    while not any(front_end.is_ready for front_end in front_ends.running):
        await asyncio.sleep(0.01)


def make_spawn(code: str) -> Any:
    """Return a replacement of spawn_front_end that runs `code` with the descriptors of its channel and heartbeat."""

    def spawn(fds: Sequence[int]) -> Spawned:
        passed = [fds[0], fds[2]]
        return subprocess.Popen([sys.executable, "-S", "-c", code, *map(str, passed)], pass_fds=passed)

    return spawn


def make_front_ends(monkeypatch: pytest.MonkeyPatch, code: str) -> FrontEndManager:
    """Return the manager of one front-end process that runs `code`."""
    monkeypatch.setattr(front_end_child, "spawn_front_end", make_spawn(code))
    monkeypatch.setattr(front_end_child, "EXIT_MARGIN_S", 0.2)
    settings = ServerConfig(api_server_count=1, shutdown_delay_s=0.0, shutdown_timeout_s=0.0)
    return make_manager(settings, lambda error: None)


LISTENS = f"""
import mmap, socket, struct, sys, time
channel = socket.socket(fileno=int(sys.argv[1]))
channel.send({encode_frame(Listening())!r})
beats = mmap.mmap(int(sys.argv[2]), 24)
"""
BEATS = """
while True:
    struct.pack_into("3d", beats, 0, time.monotonic(), stage, since)
    time.sleep(0.05)
"""
IDLE = LISTENS + "stage = since = 0" + BEATS
DISCONNECTED = LISTENS + "stage = since = 0\nchannel.close()" + BEATS
BLOCKED = LISTENS + "stage, since = 5, time.monotonic()" + BEATS


async def test_the_server_stops_after_failed_attempts_to_start_front_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_end_child, "spawn_front_end", make_spawn("raise SystemExit(3)"))
    failures: list[BaseException] = []

    failed = asyncio.Event()

    def on_failed(error: BaseException) -> None:
        failures.append(error)
        failed.set()

    front_ends = make_manager(ServerConfig(api_server_count=2), on_failed)
    front_ends.start()
    await asyncio.wait_for(failed.wait(), 60)
    await front_ends.drain()
    assert isinstance(failures[0], PoolingError)
    assert "front-end processes exit before they listen" in str(failures[0])
    assert "status 3" in str(failures[0])


async def test_a_front_end_is_started_again_and_again_while_the_system_refuses_a_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[float] = []
    failures: list[BaseException] = []
    monkeypatch.setattr(restart_policy, "MIN_RESTART_DELAY_S", 0.02)

    def refuse(fds: Sequence[int]) -> Spawned:
        attempts.append(time.monotonic())
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(front_end_child, "spawn_front_end", refuse)

    front_ends = make_manager(ServerConfig(api_server_count=1), failures.append)
    front_ends.start()
    while len(attempts) < front_end_child.MAX_START_FAILURES + 2:
        await asyncio.sleep(0.01)
    await front_ends.drain()
    assert not failures
    assert attempts[4] - attempts[3] > 1.5 * (attempts[2] - attempts[1])  # the delay is doubled
    assert "could not be started (Resource temporarily unavailable)" in caplog.text


async def test_a_front_end_that_does_not_exit_in_time_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_end_child, "spawn_front_end", make_spawn("import time; time.sleep(600)"))
    monkeypatch.setattr(front_end_child, "EXIT_MARGIN_S", 0.2)
    processes: list[subprocess.Popen[bytes]] = []

    settings = ServerConfig(api_server_count=2, shutdown_delay_s=0.0, shutdown_timeout_s=0.1)
    front_ends = make_manager(settings, lambda error: None)
    front_ends.start()
    while len(front_ends.running) < 2:
        await asyncio.sleep(0.01)
    processes.extend(front_end.process for front_end in front_ends.running)
    await front_ends.drain()
    assert [process.wait(10) for process in processes] == [-9, -9]


async def test_one_running_front_end_is_enough_to_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first listens and stays, the second never starts."""
    spawned: list[int] = []

    def spawn(fds: Sequence[int]) -> Spawned:
        spawned.append(len(spawned))
        return make_spawn(IDLE if len(spawned) == 1 else "raise SystemExit(3)")(fds)  # type: ignore[no-any-return]

    monkeypatch.setattr(front_end_child, "spawn_front_end", spawn)
    monkeypatch.setattr(front_end_child, "EXIT_MARGIN_S", 0.2)
    failures: list[BaseException] = []

    settings = ServerConfig(api_server_count=2, shutdown_delay_s=0.0, shutdown_timeout_s=0.0)
    front_ends = make_manager(settings, failures.append)
    front_ends.start()
    while len(spawned) < front_end_child.MAX_START_FAILURES + 3:
        await asyncio.sleep(0.01)
    assert [front_end.is_ready for front_end in front_ends.running if front_end.front_end_id == 1] == [True]
    await front_ends.drain()
    assert not failures


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (LISTENS + "time.sleep(600)", "gave no sign of life for 1.* s and was killed"),
        (BLOCKED, "had its event loop blocked for 1.* s and was killed"),
        ("import time; time.sleep(600)", "gave no sign of life for 1.* s and was killed"),
        (DISCONNECTED, "it closed its channel and was killed"),
    ],
    ids=["stopped", "blocked", "never begins", "disconnected"],
)
async def test_a_front_end_that_hangs_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: str, reason: str
) -> None:
    for name in ("HEARTBEAT_TIMEOUT_S", "LOOP_TIMEOUT_S"):
        monkeypatch.setattr(heartbeat, name, 1.0)
    for name in ("STARTING_TIMEOUT_S", "SILENCE_TIMEOUT_S"):
        monkeypatch.setattr(front_end_child, name, 1.0)
    monkeypatch.setattr(child, "EXIT_MARGIN_S", 0.1)

    async with asyncio.timeout(60):
        front_ends = make_front_ends(monkeypatch, code)
        front_ends.start()
        while not re.search(reason, caplog.text):
            await asyncio.sleep(0.01)
        (first,) = re.findall(r"front-end 1 \(process (\d+)\)", caplog.text)
        while not front_ends.running:
            await asyncio.sleep(0.01)
        assert front_ends.running[0].process.pid != int(first)
        await front_ends.drain()


@pytest.mark.parametrize(("silent_s", "is_killed"), [(10.0, False), (16.0, True)])
async def test_a_front_end_without_time_for_some_seconds_keeps_its_requests(silent_s: float, is_killed: bool) -> None:
    """An engine is replaced after five: its requests are sent again, while those of a front-end are lost with it."""
    front_end = SimpleNamespace(is_ready=True)

    hang = FrontEndChild.find_hang(front_end, Beat(silent_s, "", 0.0))  # type: ignore[arg-type]

    assert (hang is not None) == is_killed


async def test_a_front_end_that_beats_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT_TIMEOUT_S", 1.0)
    monkeypatch.setattr(front_end_child, "SILENCE_TIMEOUT_S", 1.0)

    front_ends = make_front_ends(monkeypatch, IDLE)
    front_ends.start()
    await wait_until_listening(front_ends)
    await asyncio.sleep(1.5)
    is_alive = front_ends.running[0].process.poll() is None
    await front_ends.drain()

    assert is_alive


async def test_a_front_end_gets_another_link_when_descriptors_are_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "LINK_RETRY_S", 0.01)
    links: list[int] = []

    front_ends = make_front_ends(monkeypatch, IDLE)
    front_ends.supervisor.add_engine_link = lambda engine_id, link: (links.append(engine_id), link.close())[0]
    front_ends.start()
    await wait_until_listening(front_ends)
    front_ends.set_engine_state(EngineState(7, "ready", ""))
    with monkeypatch.context() as without_descriptors:
        without_descriptors.setattr(manager, "make_link", refuse_link)
        front_ends.reconnect(front_ends.running[0], 7)
        await asyncio.sleep(0.05)
        assert not links
    while not links:
        await asyncio.sleep(0.01)
    num_links = len(links)  # more than one if the front-end was slow to read them
    front_ends.set_engine_state(EngineState(7, "restarting", ""))
    front_ends.reconnect(front_ends.running[0], 7)
    assert len(links) == num_links
    front_ends.set_engine_state(EngineState(7, "ready", ""))
    assert len(links) == num_links + 1
    await front_ends.drain()


def refuse_link() -> Any:
    raise OSError(24, "Too many open files")


async def test_an_engine_is_released_when_the_front_end_that_uses_it_has_exited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    front_ends = make_front_ends(monkeypatch, IDLE)
    front_ends.start()
    await wait_until_listening(front_ends)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(front_ends.release_engine(7), 0.01)
    releasing = asyncio.create_task(front_ends.release_engine(7))
    await asyncio.sleep(0)
    front_ends.running[0].process.kill()
    await asyncio.wait_for(releasing, 30)
    await front_ends.drain()


async def test_a_link_that_is_lost_is_replaced_until_its_engine_has_ended() -> None:
    front_ends = make_manager(ServerConfig(api_server_count=1), raise_error)
    linked: list[int] = []

    def add_link(link: socket.socket, engine_id: int) -> bool:
        link.close()
        linked.append(engine_id)
        return True

    front_ends.supervisor.add_engine_link = lambda engine_id, link: link.close()
    released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    front_end: Any = SimpleNamespace(is_running=True, lost_links=set(), front_end_id=1, add_link=add_link)
    calls: list[Any] = []
    front_end.channel = SimpleNamespace(
        send=lambda message: None, call=lambda message: released, start_call=calls.append
    )
    front_ends.front_ends = [front_end]
    front_ends.connect_engine(7)
    front_ends.set_engine_state(EngineState(7, "ready", ""))

    releasing = asyncio.create_task(front_ends.release_engine(7))
    await asyncio.sleep(0)
    front_ends.reconnect(front_end, 7)
    assert linked == [7, 7]  # requests in flight need it
    front_ends.connect_engine(7)  # its process has been replaced
    front_ends.introduce(front_end)  # another process, which has no request for it
    assert (linked, calls) == ([7, 7, 7], [ReleaseEngine(7)])
    released.set_result(None)
    await releasing
    front_ends.forget_engine(7)
    front_ends.reconnect(front_end, 7)
    front_ends.introduce(front_end)
    assert (linked, calls) == ([7, 7, 7], [ReleaseEngine(7)])


def raise_error(error: BaseException) -> None:
    raise error
