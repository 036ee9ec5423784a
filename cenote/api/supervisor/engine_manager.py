"""Keep one engine process running: restart it when it exits, for ever once it was ready; kill it when it hangs."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from contextlib import suppress
from typing import Protocol

import msgspec

from cenote.api.supervisor.engine_handle import EngineHandle
from cenote.api.supervisor.engine_launcher import EngineLauncher
from cenote.api.supervisor.restart_policy import (
    MAX_RESTART_DELAY_S,
    EngineExit,
    RestartPolicy,
)
from cenote.api.wire.control_messages import EngineExited, EngineInit, SetAdapters
from cenote.api.wire.heartbeat import HEARTBEAT_TIMEOUT_S, read_beats
from cenote.errors import EngineStopped
from cenote.protocol.engine import EngineStatus
from cenote.utils.metrics import MetricFamily, MetricsRegistry

logger = logging.getLogger("cenote")

LOADING_HEARTBEAT_TIMEOUT_S = 300.0  # loading may hold the interpreter for long
# the engine's own watchdog goes first: its requests get a message that says what happened
STEP_TIMEOUT_MARGIN_S = 1.0


class EngineListener(Protocol):
    """What the supervisor does when an engine changes its state."""

    def on_engine_started(self, manager: EngineManager) -> None: ...

    def on_engine_ready(self, manager: EngineManager, model_info: bytes) -> None: ...

    def on_engine_exited(self, exited: EngineExited) -> None: ...

    def on_engine_status(self, manager: EngineManager, reason: str) -> None: ...

    def on_engine_failed(self, manager: EngineManager, error: Exception) -> None:
        """Called once when no engine could be started at all; one that was ready once is started for ever."""
        ...


class EngineManager:
    def __init__(
        self,
        engine_id: int,
        init: EngineInit,
        step_timeout_s: float,
        listener: EngineListener,
        launcher: EngineLauncher,
        name: str = "",
    ) -> None:
        """`engine_id`: never used again by this server. `name`: of the model, in logs of servers with several."""
        self.engine_id = engine_id
        self.name = f" of {name}" if name else ""
        self.init = init
        self.step_timeout_s = step_timeout_s
        self.listener = listener
        self.launcher = launcher
        self.engine: EngineHandle | None = None
        self.status: EngineStatus = "loading"
        self.reason = ""  # why it does not answer
        self.since = 0.0  # Unix time since when it does not answer; 0.0 while it does, and before the first exit
        self.policy = RestartPolicy()
        # path by name, the same at all replicas of the model; None before it has been loaded for the first time
        self.adapters: dict[str, str] | None = None
        self.changed_adapters: set[str] = set()  # that requests have loaded since the process was started
        self.registry = MetricsRegistry()
        self._count_restart = self.registry.counter(
            "cenote_engine_restarts_total", "Engine processes started again after one has exited."
        )
        self.has_been_ready = False
        self._num_exits = 0
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End the engine process."""
        self._stopping.set()
        if self.engine is not None:
            await self.engine.stop()
        if self._task is not None:
            await self._task

    def add_link(self, link: socket.socket) -> None:
        """Connect a front-end with the engine process that runs now."""
        assert self.engine is not None, "links are made for an engine that has been started"
        self.engine.add_link(link, self.engine_id)

    def measure_memory(self) -> int:
        return 0 if self.engine is None else self.engine.measure_memory()

    async def collect_metrics(self) -> list[MetricFamily]:
        families = [] if self.engine is None else await self.engine.collect_metrics()
        return [*families, *self.registry.snapshot()]

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                await self._keep_running()
                return
            except Exception as error:  # a defect: what is watched no more would never come back
                logger.exception("the supervisor failed to manage the engine%s", self.name)
                reason = f"the supervisor failed ({type(error).__name__}: {error})"
                if not self.has_been_ready:
                    self._give_up(reason)
                    return
                with suppress(Exception):  # perhaps that is what fails
                    self._set_status("failed", reason)
                await self._wait_stopping(MAX_RESTART_DELAY_S)

    async def _keep_running(self) -> None:
        """Run engine processes one after the other; return when the server stops or none can ever load the model."""
        while not self._stopping.is_set():
            adapters = self.init.adapters if self.adapters is None else self.adapters
            self.init = msgspec.structs.replace(self.init, adapters=adapters, engine_number=self._num_exits)
            engine = EngineHandle(self.launcher, self._on_loaded)
            reason, code = await self._run_once(engine)
            if self._stopping.is_set():
                return
            self._report_exit(engine, reason, code)
            if engine.load_error is not None and not self.has_been_ready:
                # a wrong option or a broken file: trying again changes nothing
                self.listener.on_engine_failed(self, engine.load_error)
                return
            policy = self.policy
            is_external = engine.is_caused_by_surroundings(code, self.has_been_ready)
            policy.on_exit(EngineExit(engine.is_loaded, is_external, engine.on_device))
            status: EngineStatus = "restarting" if self.has_been_ready else "loading"
            state = reason
            if policy.is_crash_loop:
                status, state = "failed", f"{policy.describe_crash_loop()}, the last one: {reason}"
                if not self.has_been_ready:
                    self._give_up(state)
                    return
            when = f"in {policy.delay_s:.1f} s" if policy.delay_s else "now"
            log_reason = reason + engine.describe_last_line(code)
            logger.error(
                "the engine process %d%s has ended: %s; starting another %s", engine.pid, self.name, log_reason, when
            )
            if status == "failed" and self.status != "failed":
                logger.error("the model%s has failed: %s; it is tried again until it serves", self.name, state)
            self._set_status(status, state)
            await self._wait_stopping(policy.delay_s)
            self._count_restart()

    async def _wait_stopping(self, timeout_s: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), timeout_s)

    def _report_exit(self, engine: EngineHandle, reason: str, code: int) -> None:
        """Tell the front-ends what was on the device, before they send anything to the next process."""
        self._num_exits += 1
        calls, is_isolated, _ = engine.on_device
        is_external = engine.was_killed_externally(code)
        self.listener.on_engine_exited(
            EngineExited(self.engine_id, self._num_exits, reason, calls, is_isolated, is_external)
        )

    async def _run_once(self, engine: EngineHandle) -> tuple[str, int]:
        """Run one engine process until it exits; return why, and its exit code."""
        self.engine = engine
        self.changed_adapters.clear()
        try:
            await engine.start(self.init)
        except OSError as error:  # for example the limit of processes is reached for the moment
            engine.start_error = error
            return engine.describe_exit(1), 1
        watcher = asyncio.get_running_loop().create_task(self._watch(engine))
        try:
            if self._stopping.is_set():  # before the process was there to be stopped
                await engine.stop()
            else:
                self.listener.on_engine_started(self)
        except Exception as error:
            if isinstance(error, OSError):  # no descriptors are left for its links
                engine.start_error = error
            else:
                logger.exception("the engine process %d%s could not be connected", engine.pid, self.name)
            engine.kill(f"it could not be connected ({error})")
        try:
            code = await engine.wait_exit()
        finally:
            watcher.cancel()
        engine.close()
        return engine.describe_exit(code), code

    def _on_loaded(self, engine: EngineHandle) -> None:
        if self.adapters is None:
            self.adapters = engine.loaded_adapters
        engine.control.send(SetAdapters(self.adapters, sorted(self.changed_adapters)))
        self.has_been_ready = True
        self._set_status("ready", "")
        self.listener.on_engine_ready(self, engine.model_info)

    def _set_status(self, status: EngineStatus, reason: str) -> None:
        if status == "ready":
            self.since = 0.0
        elif not self.since:
            self.since = time.time()
        self.status, self.reason = status, reason
        self.listener.on_engine_status(self, reason)

    def _give_up(self, message: str) -> None:
        """Start no more engines of a model that has never been loaded."""
        logger.error("%s; no more%s are started", message, self.name)
        self._set_status("failed", message)
        self.listener.on_engine_failed(self, EngineStopped(message))

    async def _watch(self, engine: EngineHandle) -> None:
        """Kill an engine process that hangs."""
        async for beat in read_beats(engine.heartbeat):
            limit_s = HEARTBEAT_TIMEOUT_S if engine.is_loaded else LOADING_HEARTBEAT_TIMEOUT_S
            if beat.age_s > limit_s:
                engine.kill(f"it gave no sign of life for {beat.age_s:.1f} s and was killed")
            elif beat.stage and beat.busy_s > self.step_timeout_s + STEP_TIMEOUT_MARGIN_S and engine.is_loaded:
                limit = f"{self.step_timeout_s:g} s (step_timeout_s)"
                engine.kill(f"its {beat.stage} did not finish within {limit} and it was killed")
