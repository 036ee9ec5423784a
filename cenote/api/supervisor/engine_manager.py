"""Keep one engine process running: restart it when it exits, kill it when it hangs."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import deque
from contextlib import suppress
from typing import Protocol

import msgspec

from cenote.api.supervisor.engine_handle import EngineHandle
from cenote.api.supervisor.engine_launcher import EngineLauncher
from cenote.api.wire.control_messages import EngineExited, EngineInit, SetAdapters
from cenote.errors import EngineStopped
from cenote.protocol.engine import EngineStatus
from cenote.utils.metrics import MetricFamily, MetricsRegistry

logger = logging.getLogger("cenote")

# before an engine that never became ready is started again; doubled every time
MIN_RESTART_DELAY_S, MAX_RESTART_DELAY_S = 0.5, 30.0
# so many failures of the engine itself within this time, and the model has failed
MAX_FAILURES, FAILURE_WINDOW_S = 5, 60.0
POLL_INTERVAL_S = 0.2
# the thread that writes heartbeats needs the interpreter for a moment every 0.1 s; loading may hold it for long
HEARTBEAT_TIMEOUT_S, LOADING_HEARTBEAT_TIMEOUT_S = 5.0, 300.0
# the engine's own watchdog goes first: its requests get a message that says what happened
STEP_TIMEOUT_MARGIN_S = 1.0


class EngineListener(Protocol):
    """What the supervisor does when an engine changes its state."""

    def on_engine_started(self, manager: EngineManager) -> None: ...

    def on_engine_ready(self, manager: EngineManager, model_info: bytes) -> None: ...

    def on_engine_exited(self, exited: EngineExited) -> None: ...

    def on_engine_status(self, manager: EngineManager, reason: str) -> None: ...

    def on_engine_failed(self, manager: EngineManager, error: Exception) -> None:
        """Called once when no engine could be started at all."""
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
        # path by name, the same at all replicas of the model; None before it has been loaded for the first time
        self.adapters: dict[str, str] | None = None
        self.changed_adapters: set[str] = set()  # that requests have loaded since the process was started
        self.registry = MetricsRegistry()
        self._count_restart = self.registry.counter(
            "cenote_engine_restarts_total", "Engine processes started again after one has exited."
        )
        self.has_been_ready = False
        self._num_exits = 0
        self._was_working = False  # whether the last process that failed had finished a batch
        self._failures: deque[float] = deque(maxlen=MAX_FAILURES)
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
        try:
            await self._keep_running()
        except Exception:  # a defect: whoever waits for an engine must not wait for ever
            logger.exception("the engine%s is not watched any more", self.name)
            self._set_failed("the supervisor failed")
            raise

    async def _keep_running(self) -> None:
        delay = MIN_RESTART_DELAY_S
        while not self._stopping.is_set():
            engine = EngineHandle(self.launcher, self._on_loaded)
            reason, code = await self._run_once(engine)
            if self._stopping.is_set():
                return
            self._report_exit(engine, reason, code)
            error = engine.load_error
            if error is not None and not self.has_been_ready:
                self.listener.on_engine_failed(
                    self, error
                )  # a wrong option or a broken file: trying again changes nothing
                return
            self._count_failure(engine, code)
            if self._is_crash_loop():
                period = f"{MAX_FAILURES} engine processes failed within {FAILURE_WINDOW_S:.0f} s"
                self._set_failed(f"{period}, the last one: {reason}")
                return
            # an engine that has served is replaced at once; one that does not start gets time for what it lacks
            delay = 0.0 if engine.is_loaded else min(MAX_RESTART_DELAY_S, max(MIN_RESTART_DELAY_S, 2 * delay))
            when = "now" if delay == 0.0 else f"in {delay:.1f} s"
            log_reason = reason + engine.describe_last_line(code)
            logger.error(
                "the engine process %d%s has ended: %s; starting another %s", engine.pid, self.name, log_reason, when
            )
            self._set_status("restarting" if self.has_been_ready else "loading", reason)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)
            self._count_restart()
            adapters = self.init.adapters if self.adapters is None else self.adapters
            self.init = msgspec.structs.replace(self.init, adapters=adapters, engine_number=self._num_exits)

    def _report_exit(self, engine: EngineHandle, reason: str, code: int) -> None:
        """Tell the front-ends what was on the device, before they send anything to the next process."""
        self._num_exits += 1
        calls, is_isolated, _ = engine.on_device
        is_external = engine.was_killed_externally(code)
        self.listener.on_engine_exited(
            EngineExited(self.engine_id, self._num_exits, reason, calls, is_isolated, is_external)
        )

    def _count_failure(self, engine: EngineHandle, code: int) -> None:
        """Record a failure of the engine itself: not the signal of somebody else, not an input that is to blame.

        An input that crashes the process does so twice, the second time alone. Both crashes are its own, unless these
        processes finished no batch at all: then the engine cannot compute anything.
        """
        was_working, self._was_working = self._was_working, False
        if engine.was_killed_externally(code) and engine.is_loaded:
            return
        self._was_working = engine.on_device.num_finished > 0
        if engine.on_device.is_isolated and (self._was_working or was_working):
            if self._failures:
                self._failures.pop()
            return
        self._failures.append(time.monotonic())

    async def _run_once(self, engine: EngineHandle) -> tuple[str, int]:
        """Run one engine process until it exits; return why, and its exit code."""
        self.engine = engine
        self.changed_adapters.clear()
        try:
            await engine.start(self.init)
        except OSError as error:  # for example the limit of processes is reached for the moment
            return f"could not be started ({error.strerror})", 1
        if self._stopping.is_set():  # before the process was there to be stopped
            await engine.stop()
        else:
            self.listener.on_engine_started(self)
        watcher = asyncio.get_running_loop().create_task(self._watch(engine))
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
        self.status = status
        self.listener.on_engine_status(self, reason)

    def _is_crash_loop(self) -> bool:
        return len(self._failures) == MAX_FAILURES and time.monotonic() - self._failures[0] < FAILURE_WINDOW_S

    def _set_failed(self, message: str) -> None:
        logger.error("%s; no more%s are started", message, self.name)
        self._set_status("failed", message)
        if not self.has_been_ready:
            self.listener.on_engine_failed(self, EngineStopped(message))

    async def _watch(self, engine: EngineHandle) -> None:
        """Kill an engine process that hangs."""
        last_poll = time.monotonic()
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            now = time.monotonic()
            was_late, last_poll = now - last_poll > HEARTBEAT_TIMEOUT_S / 2, now
            beat = engine.heartbeat.read()
            if beat is None or was_late:  # if this process was stopped, the engine probably was too
                continue
            limit_s = HEARTBEAT_TIMEOUT_S if engine.is_loaded else LOADING_HEARTBEAT_TIMEOUT_S
            if beat.age_s > limit_s:
                engine.kill(f"it gave no sign of life for {beat.age_s:.1f} s and was killed")
            elif beat.stage and beat.busy_s > self.step_timeout_s + STEP_TIMEOUT_MARGIN_S and engine.is_loaded:
                limit = f"{self.step_timeout_s:g} s (step_timeout_s)"
                engine.kill(f"its {beat.stage} did not finish within {limit} and it was killed")
