"""Who is to blame for the exit of a process."""

from __future__ import annotations

import asyncio
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from cenote.api.supervisor import child
from cenote.api.supervisor.engine_child import EngineChild
from cenote.api.supervisor.engine_launcher import EngineLauncher
from cenote.api.wire.control_messages import EngineExited, EngineInit
from cenote.config.server import ServerConfig
from cenote.errors import EngineHung, EngineStopped, LoadError


@pytest.mark.parametrize(
    ("code", "facts", "num_oom_kills", "is_external", "is_external_at_first"),
    [
        (-signal.SIGSEGV, {}, 0, False, False),
        (70, {}, 0, False, False),
        (-signal.SIGKILL, {}, 0, True, False),  # of somebody else
        (-signal.SIGKILL, {}, 1, True, False),  # of the kernel, which lacks memory: the model may never fit
        (-signal.SIGKILL, {"kill_reason": "it gave no sign of life for 5.1 s"}, 0, False, False),
        (78, {"load_error": LoadError("the bucket is away")}, 0, True, False),
        (1, {"start_error": OSError(24, "Too many open files")}, 0, True, True),
    ],
    ids=["crash", "own end", "signal", "memory", "hang", "source", "start"],
)
def test_the_surroundings_are_told_from_the_engine_itself(
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    facts: dict[str, Any],
    num_oom_kills: int,
    is_external: bool,
    is_external_at_first: bool,
) -> None:
    monkeypatch.setattr(child, "count_oom_kills", lambda: num_oom_kills)

    async def ask(has_been_ready: bool) -> bool:
        init = EngineInit(ServerConfig(), b"", {})
        engine = EngineChild(1, init, 60.0, SimpleNamespace(), EngineLauncher())  # type: ignore[arg-type]
        engine.has_been_ready = has_been_ready
        for name, value in facts.items():
            setattr(engine, name, value)
        return engine.is_caused_by_surroundings(code)

    assert asyncio.run(ask(has_been_ready=True)) == is_external
    assert asyncio.run(ask(has_been_ready=False)) == is_external_at_first


@pytest.mark.parametrize(
    ("code", "facts", "cause"),
    [
        (-signal.SIGSEGV, {}, "crash"),
        (70, {"failure": EngineStopped("the device is lost")}, "crash"),
        (70, {"failure": EngineHung("a batch did not finish within 60 s")}, "hang"),
        (-signal.SIGKILL, {"kill_reason": "it gave no sign of life for 5.1 s"}, "hang"),
        (-signal.SIGKILL, {}, "external"),
    ],
)
def test_front_ends_learn_whether_a_process_crashed_hung_or_was_killed_by_somebody_else(
    monkeypatch: pytest.MonkeyPatch, code: int, facts: dict[str, Any], cause: str
) -> None:
    monkeypatch.setattr(child, "count_oom_kills", lambda: 0)
    exits: list[EngineExited] = []

    async def leave() -> None:
        listener = SimpleNamespace(on_engine_exited=exits.append)
        engine = EngineChild(1, EngineInit(ServerConfig(), b"", {}), 60.0, listener, EngineLauncher())  # type: ignore[arg-type]
        for name, value in facts.items():
            setattr(engine, name, value)
        engine.on_exited("it has ended", code)

    asyncio.run(leave())

    assert [exited.cause for exited in exits] == [cause]


class StubProcess:
    """A process that exits when it is told to."""

    pid, code = 0, None

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None: ...


@pytest.mark.parametrize(
    ("poll_s", "closes"), [(60.0, True), (0.01, False)], ids=["channel closed", "channel held open"]
)
def test_an_exit_is_noticed_by_the_channel_and_otherwise_by_polling(
    monkeypatch: pytest.MonkeyPatch, poll_s: float, closes: bool
) -> None:
    monkeypatch.setattr(child, "POLL_S", poll_s)

    async def watch() -> int:
        process, has_closed = StubProcess(), asyncio.Event()
        waiting = asyncio.create_task(child.wait_exit(process, has_closed))
        await asyncio.sleep(0)
        process.code = 7
        if closes:
            has_closed.set()
        async with asyncio.timeout(10):
            return await waiting

    assert asyncio.run(watch()) == 7
