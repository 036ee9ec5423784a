"""The supervisor: the parent of the engine process and of the front-ends; never imports torch."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
import uvloop

from cenote.api.app_state import AppState
from cenote.api.banner import log_banner
from cenote.api.server_metrics import LocalServerMetrics
from cenote.api.sockets import make_tls_context
from cenote.api.supervisor.engine_handle import EngineHandle
from cenote.api.supervisor.engine_manager import EngineManager
from cenote.api.supervisor.front_end_manager import FrontEndManager
from cenote.api.supervisor.local_front_end import LocalFrontEnd
from cenote.api.wire.control_messages import EngineExited, EngineInit, EngineState
from cenote.api.wire.engine_options import encode_engine_config
from cenote.config.engine import EngineConfig
from cenote.protocol.engine import Engine, EngineStatus
from cenote.protocol.model_info import ModelInfo
from cenote.utils.metrics import MetricFamily

logger = logging.getLogger("cenote")

# the engine is started when the first front-end listens, or after this time: importing torch takes CPU time that
# front-ends need to start
FRONT_END_STARTUP_S = 1.5


def run_supervisor(
    app_state: AppState,
    listeners: Sequence[socket.socket],
    config: EngineConfig,
    engine_command: Sequence[str] | None = None,
) -> None:
    """Serve until a signal, then drain in-flight requests; raise the error if the model cannot be loaded.

    `engine_command` replaces the command of the engine process, in tests.
    """
    make_tls_context(app_state.settings)  # reports an error here once instead of in every front-end

    async def serve() -> BaseException | None:
        supervisor = Supervisor(app_state, listeners, config, engine_command)
        await supervisor.serve()
        return supervisor.failure

    failure = uvloop.run(serve())
    if failure is not None:
        raise failure
    logger.info("stopped")


class Supervisor:
    """Connect the engine process with the front-ends, whichever of them is started again."""

    def __init__(
        self,
        app_state: AppState,
        listeners: Sequence[socket.socket],
        config: EngineConfig,
        engine_command: Sequence[str] | None,
    ) -> None:
        self.app_state = app_state
        self.listeners = listeners
        self.failure: BaseException | None = None
        init = EngineInit(app_state.settings, encode_engine_config(config), {})
        self.engine_manager = EngineManager(init, config.step_timeout_s, self, engine_command)
        self.metrics = SupervisorMetrics(self.engine_manager, app_state.collect_admission_metrics)
        app_state.metrics = self.metrics
        self.front_ends: LocalFrontEnd | FrontEndManager
        if app_state.settings.api_server_count == 1:
            self.front_ends = LocalFrontEnd(
                app_state, listeners, self._add_engine_link, self.engine_manager.start, self._on_link_lost
            )
        else:
            self.front_ends = FrontEndManager(
                app_state,
                listeners,
                add_engine_link=self._add_engine_link,
                collect_metrics=self.metrics.collect_all,
                on_all_ready=self._on_all_ready,
                on_failed=self._on_failed,
            )
        self._stop_requested = asyncio.Event()
        self._num_signals = 0
        self._model_info = b""

    async def serve(self) -> None:
        if isinstance(self.front_ends, LocalFrontEnd):
            await self.front_ends.serve()
            self.failure = self.failure or self.front_ends.server.failure
        else:
            await self._serve_with_processes(self.front_ends)
        await self.engine_manager.stop()

    async def _serve_with_processes(self, front_ends: FrontEndManager) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        front_ends.start()
        with suppress(TimeoutError):
            await asyncio.wait_for(front_ends.any_listening.wait(), FRONT_END_STARTUP_S)
        if not self._stop_requested.is_set():
            self.engine_manager.start()
        await self._stop_requested.wait()
        for listener in self.listeners:
            listener.close()  # front-ends have copies, and close them when they have accepted what was connected
        await front_ends.drain()

    def on_engine_started(self, engine: EngineHandle) -> None:
        self.front_ends.connect_engine()

    def on_engine_ready(self, model_info: bytes) -> None:
        if self._model_info:
            logger.info("the engine is ready again (process %d)", self._engine_pid)
        self._model_info = model_info
        if isinstance(self.front_ends, FrontEndManager):
            self.front_ends.model_info = model_info

    def on_engine_exited(self, exited: EngineExited) -> None:
        self.front_ends.report_exit(exited)

    def on_engine_status(self, status: EngineStatus, reason: str) -> None:
        self.front_ends.set_engine_state(EngineState(status, reason))

    def on_engine_failed(self, error: Exception) -> None:
        self._on_failed(error)

    def _on_link_lost(self) -> None:
        if self.engine_manager.status == "ready":  # the engine process lives
            self.front_ends.connect_engine()

    @property
    def _engine_pid(self) -> int:
        return 0 if self.engine_manager.engine is None else self.engine_manager.engine.pid

    def _add_engine_link(self, link: socket.socket) -> None:
        assert self.engine_manager.engine is not None, "links are made for an engine that has been started"
        self.engine_manager.engine.add_link(link)

    def _on_all_ready(self) -> None:
        if not self._stop_requested.is_set():
            log_banner(self.app_state, self.listeners[0], msgspec.json.decode(self._model_info, type=ModelInfo))

    def _on_signal(self, signal_number: int) -> None:
        assert isinstance(self.front_ends, FrontEndManager), "a local front-end handles signals itself"
        name = signal.Signals(signal_number).name
        self._num_signals += 1
        if self._num_signals > 1:  # shutdown may have begun for another reason before the first
            logger.warning("received %s again, exiting immediately", name)
            os._exit(128 + signal_number)  # the other processes exit with this one
        logger.info("received %s, draining %d requests", name, self.front_ends.num_in_flight)
        self._begin_shutdown()

    def _on_failed(self, error: BaseException) -> None:
        self.failure = self.failure or error
        if isinstance(self.front_ends, LocalFrontEnd):
            self.front_ends.fail(error)
        else:
            self._begin_shutdown()

    def _begin_shutdown(self) -> None:
        self.app_state.start_draining()
        self._stop_requested.set()


class SupervisorMetrics(LocalServerMetrics):
    """HTTP metrics of all front-ends, and the metrics of the engine process."""

    def __init__(self, engine_manager: EngineManager, collect_admission: Callable[[], list[MetricFamily]]) -> None:
        super().__init__(collect_admission)
        self.engine_manager = engine_manager

    async def collect(self, engine: Engine) -> list[MetricFamily]:
        return await self.collect_all()

    async def collect_all(self) -> list[MetricFamily]:
        return [*await self.engine_manager.collect_metrics(), *self.snapshot()]
