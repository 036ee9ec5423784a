"""The supervisor: the parent of the engine process and of the front-ends; never imports torch."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress

import uvloop

from cenote.api.app_state import AppState
from cenote.api.banner import BannerModel, log_banner
from cenote.api.sockets import make_tls_context
from cenote.api.supervisor.front_end_manager import FrontEndManager
from cenote.api.supervisor.local_front_end import LocalFrontEnd
from cenote.api.supervisor.model_manager import ModelManager
from cenote.api.supervisor.supervisor_admin import SupervisorAdmin
from cenote.api.supervisor.supervisor_metrics import SupervisorMetrics
from cenote.api.wire.link_sockets import LINK_RETRY_S
from cenote.config.model_table import ModelTable

logger = logging.getLogger("cenote")

# the engine is started when the first front-end listens, or after this time: importing torch takes CPU time that
# front-ends need to start
FRONT_END_STARTUP_S = 1.5


def run_supervisor(
    app_state: AppState,
    listeners: Sequence[socket.socket],
    table: ModelTable,
    engine_command: Sequence[str] | None = None,
) -> None:
    """Serve until a signal, then drain in-flight requests; raise the error if no model can be loaded.

    `engine_command` replaces the command of the engine process, in tests.
    """
    make_tls_context(app_state.settings)  # reports an error here once instead of in every front-end
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent may have ignored it: exit codes would be lost

    async def serve() -> BaseException | None:
        supervisor = Supervisor(app_state, listeners, table, engine_command)
        await supervisor.serve()
        return supervisor.failure

    failure = uvloop.run(serve())
    if failure is not None:
        raise failure
    logger.info("stopped")


class Supervisor:
    """Connect the engine processes with the front-ends, whichever of them is started again."""

    def __init__(
        self,
        app_state: AppState,
        listeners: Sequence[socket.socket],
        table: ModelTable,
        engine_command: Sequence[str] | None,
    ) -> None:
        self.app_state = app_state
        self.listeners = listeners
        self.failure: BaseException | None = None
        self.models = ModelManager(
            app_state.settings, table, lambda: app_state.counters, self._on_failed, engine_command
        )
        self.metrics = app_state.metrics = SupervisorMetrics(app_state, self.models)
        self.admin = app_state.admin = SupervisorAdmin(self.models, self._begin_shutdown)
        self.front_ends: LocalFrontEnd | FrontEndManager
        if app_state.settings.api_server_count == 1:
            self.front_ends = LocalFrontEnd(
                app_state,
                listeners,
                add_engine_link=self._add_engine_link,
                on_listening=self.models.start,
                on_link_lost=self._on_link_lost,
                change_adapter=self.models.change_adapter,
            )
        else:
            self.front_ends = FrontEndManager(
                app_state,
                listeners,
                add_engine_link=self._add_engine_link,
                answer_admin=self.admin.answer,
                collect_metrics=self.metrics.collect,
                on_all_ready=self._on_all_ready,
                on_failed=self._on_failed,
            )
        self.models.front_ends = self.front_ends
        self._stop_requested = asyncio.Event()
        self._num_signals = 0

    async def serve(self) -> None:
        if isinstance(self.front_ends, LocalFrontEnd):
            await self.front_ends.serve()
            self.failure = self.failure or self.front_ends.server.failure
        else:
            await self._serve_with_processes(self.front_ends)
        await self.models.stop()

    async def _serve_with_processes(self, front_ends: FrontEndManager) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        front_ends.start()
        with suppress(TimeoutError):
            await asyncio.wait_for(front_ends.any_listening.wait(), FRONT_END_STARTUP_S)
        if not self._stop_requested.is_set():
            self.models.start()
        await self._stop_requested.wait()
        for listener in self.listeners:
            listener.close()  # front-ends have copies, and close them when they have accepted what was connected
        await front_ends.drain()

    def _on_link_lost(self, engine_id: int) -> None:
        manager = self.models.find_manager(engine_id)
        if manager is None or manager.status != "ready":
            return  # the next engine process gets a link of its own
        try:
            self.front_ends.connect_engine(engine_id)
        except OSError as error:
            logger.error("an engine cannot be connected again (%s); trying again", error.strerror)
            asyncio.get_running_loop().call_later(LINK_RETRY_S, self._on_link_lost, engine_id)

    def _add_engine_link(self, engine_id: int, link: socket.socket) -> None:
        manager = self.models.find_manager(engine_id)
        assert manager is not None, "links are made for engines that run"
        manager.add_link(link)

    def _on_all_ready(self) -> None:
        if not self._stop_requested.is_set():
            models = [
                BannerModel(
                    row.entry.names, row.status, None if row.engines is None else row.engines.decode_model_info()
                )
                for row in self.models.rows.values()
            ]
            log_banner(self.app_state, self.listeners[0], models)

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
        if isinstance(self.front_ends, LocalFrontEnd):
            self.front_ends.stop()
            return
        self.app_state.start_draining()
        self._stop_requested.set()
