"""The supervisor: the parent of the engine processes and the front-ends; it serves no HTTP and never imports torch."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Sequence

import uvloop

from cenote.api.admission.counters import Counters, make_counters_file
from cenote.api.banner import BannerModel, log_banner
from cenote.api.server_context import ServerContext
from cenote.api.sockets import make_tls_context
from cenote.api.supervisor.front_end_manager import FrontEndManager
from cenote.api.supervisor.model_manager import ModelManager
from cenote.api.supervisor.supervisor_metrics import SupervisorMetrics
from cenote.api.tiktoken_file import load_tiktoken_file
from cenote.api.wire.control_messages import (
    AdminCall,
    ChangeAdapters,
    ListedModels,
    ListModels,
    LoadModel,
    ReloadModel,
    UnloadModel,
)
from cenote.api.wire.messages import Done, Message, MetricsCall, MetricsResponse, from_json
from cenote.config.model_table import ModelTable
from cenote.config.server import ServerConfig

logger = logging.getLogger("cenote")


def run_supervisor(
    settings: ServerConfig,
    listeners: Sequence[socket.socket],
    table: ModelTable,
    engine_command: Sequence[str] | None = None,
) -> None:
    """Serve until a signal, then drain in-flight requests; raise the error if no model can be loaded.

    `engine_command` replaces the command of the engine process, in tests.
    """
    check_files(settings)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent may have ignored it: exit codes would be lost

    async def serve() -> BaseException | None:
        supervisor = Supervisor(settings, listeners, table, engine_command)
        await supervisor.serve()
        return supervisor.failure

    failure = uvloop.run(serve())
    if failure is not None:
        raise failure
    logger.info("stopped")


def check_files(settings: ServerConfig) -> None:
    """Raise LoadError here, once, instead of in every front-end; keep nothing of what was read."""
    make_tls_context(settings)
    if settings.tiktoken_file is not None:
        load_tiktoken_file(settings.tiktoken_file)
        load_tiktoken_file.cache_clear()


class Supervisor:
    """Connect the engine processes with the front-ends, whichever of them is started again."""

    def __init__(
        self,
        settings: ServerConfig,
        listeners: Sequence[socket.socket],
        table: ModelTable,
        engine_command: Sequence[str] | None,
    ) -> None:
        self.listeners = listeners
        self.failure: BaseException | None = None
        counters_fd = make_counters_file(settings.api_server_count)
        counters = Counters(counters_fd, settings.api_server_count, row=None)
        self.context = ServerContext(settings, counters)
        self.models = ModelManager(settings, table, counters, self.on_failed, engine_command)
        self.metrics = SupervisorMetrics(self.models)
        self.front_ends = self.models.front_ends = FrontEndManager(self, counters_fd, listeners)
        self._stop_requested = asyncio.Event()
        self._num_signals = 0

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        self.front_ends.start()
        self.models.start()
        await self._stop_requested.wait()
        for listener in self.listeners:
            listener.close()  # front-ends have copies, and close them when they have accepted what was connected
        await self.front_ends.drain()
        await self.models.stop()

    # calls of FrontEndManager

    def add_engine_link(self, engine_id: int, link: socket.socket) -> None:
        """Pass the engine's end of a link to it."""
        child = self.models.find_child(engine_id)
        assert child is not None, "links are made for engines that run"
        child.add_link(link, engine_id)

    async def answer(self, call: AdminCall | MetricsCall) -> Message:
        """Answer a call of a front-end."""
        models = self.models
        if isinstance(call, MetricsCall):
            return MetricsResponse(await self.metrics.collect())
        if isinstance(call, ListModels):
            return ListedModels(await models.list_models())
        if isinstance(call, LoadModel):
            return ListedModels(
                [await models.load(call.name, None if call.changes is None else from_json(call.changes))]
            )
        if isinstance(call, UnloadModel):
            return ListedModels([await models.unload(call.name)])
        if isinstance(call, ReloadModel):
            return ListedModels([await models.reload(call.name, from_json(call.changes))])
        if isinstance(call, ChangeAdapters):
            await models.change_adapter(call.engine_id, call.name, call.path, call.in_place)
        else:
            logger.info("shutting down: an admin has asked for it")
            self._begin_shutdown()
        return Done()

    def on_all_ready(self) -> None:
        """Called once, when all front-ends can serve."""
        if not self._stop_requested.is_set():
            models = [
                BannerModel(
                    row.entry.names, row.status, None if row.engines is None else row.engines.decode_model_info()
                )
                for row in self.models.rows.values()
            ]
            log_banner(self.context, self.listeners[0], models)

    def _on_signal(self, signal_number: int) -> None:
        name = signal.Signals(signal_number).name
        self._num_signals += 1
        if self._num_signals > 1:  # shutdown may have begun for another reason before the first
            logger.warning("received %s again, exiting immediately", name)
            os._exit(128 + signal_number)  # the other processes exit with this one
        logger.info("received %s, draining %d requests", name, self.front_ends.num_in_flight)
        self._begin_shutdown()

    def on_failed(self, error: BaseException) -> None:
        """Called when no front-end can be started, or no model can be loaded."""
        self.failure = self.failure or error
        self._begin_shutdown()

    def _begin_shutdown(self) -> None:
        self._stop_requested.set()
