"""Who is to blame for the exit of an engine process."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from cenote.api.supervisor import engine_handle
from cenote.api.supervisor.engine_handle import EngineHandle
from cenote.api.supervisor.engine_launcher import EngineLauncher
from cenote.errors import LoadError


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
    monkeypatch.setattr(engine_handle, "count_oom_kills", lambda: num_oom_kills)

    async def ask(has_been_ready: bool) -> bool:
        engine = EngineHandle(EngineLauncher(), lambda engine: None)
        for name, value in facts.items():
            setattr(engine, name, value)
        return engine.is_caused_by_surroundings(code, has_been_ready)

    assert asyncio.run(ask(has_been_ready=True)) == is_external
    assert asyncio.run(ask(has_been_ready=False)) == is_external_at_first
