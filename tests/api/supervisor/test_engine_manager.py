"""Which exits of engine processes count as failures of the server."""

from __future__ import annotations

import asyncio
import signal
from types import SimpleNamespace
from typing import Any

from cenote.api.supervisor.engine_handle import EngineHandle
from cenote.api.supervisor.engine_launcher import EngineLauncher
from cenote.api.supervisor.engine_manager import MAX_FAILURES, EngineManager
from cenote.api.wire.control_messages import EngineInit
from cenote.api.wire.device_table import OnDevice
from cenote.config.server import ServerConfig

SHARED = OnDevice([(1, 0), (2, 0)], False, 10)
ALONE = OnDevice([(1, 0)], True, 0)
BROKEN = OnDevice([(1, 0)], False, 0)  # its first batch


def is_given_up(*exits: tuple[OnDevice, int]) -> bool:
    """Whether no more engines are started after these exits, each with what was on the device and the exit code."""

    async def count() -> bool:
        listener: Any = SimpleNamespace()
        launcher = EngineLauncher()
        manager = EngineManager(1, EngineInit(ServerConfig(), b"", {}), 60.0, listener, launcher)
        for on_device, code in exits:
            engine = EngineHandle(launcher, lambda engine: None)
            engine.model_info, engine.on_device = b"{}", on_device
            manager._count_failure(engine, code)
        return manager._is_crash_loop()

    return asyncio.run(count())


def test_crashes_without_a_culprit_are_failures_of_the_server() -> None:
    crash = (SHARED, -signal.SIGSEGV)
    assert not is_given_up(*[crash] * (MAX_FAILURES - 1))
    assert is_given_up(*[crash] * MAX_FAILURES)


def test_both_crashes_of_an_input_that_is_to_blame_are_its_own() -> None:
    poison = [(SHARED, -signal.SIGSEGV), (ALONE, -signal.SIGSEGV)]
    assert not is_given_up(*poison * 10)
    assert is_given_up(*poison * 10, *[(SHARED, -signal.SIGSEGV)] * MAX_FAILURES)


def test_an_engine_that_finishes_no_batch_is_given_up_whatever_the_inputs() -> None:
    assert is_given_up(*[(BROKEN, -signal.SIGSEGV), (ALONE, -signal.SIGSEGV)] * 3)


def test_signals_of_somebody_else_do_not_count() -> None:
    assert not is_given_up(*[(SHARED, -signal.SIGKILL)] * 20)
