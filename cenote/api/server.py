"""HTTP server: serves while the model loads, and drains in-flight requests at shutdown."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp

from cenote.api.app_state import AppState
from cenote.api.background_load import EngineLoader, load_in_thread
from cenote.api.banner import BannerModel, log_banner
from cenote.api.http.server import POLL_INTERVAL_S, HttpServer
from cenote.api.memory_release import release_memory_after_bursts
from cenote.api.pressure import limit_connections, watch_pressure
from cenote.api.sockets import accept_pending, make_tls_context, refuse_new_connections, reload_certificates
from cenote.api.startup_app import StartupApp
from cenote.errors import EngineStopped
from cenote.protocol.engine import Engine
from cenote.utils.garbage_collection import no_collections

if TYPE_CHECKING:
    from cenote.api.grpc.server import GrpcServer

logger = logging.getLogger("cenote")

# seconds to send error responses to requests that did not finish in time
FINAL_FLUSH_S = 1.0
# seconds for the TCP handshakes that have begun when a shutdown begins: the last packet of a client may be in transit
ROUND_TRIP_S = 0.2
# seconds for the TLS handshakes of connections accepted during shutdown
FINAL_HANDSHAKE_S = 1.0


def run_server(app_state: AppState, listeners: Sequence[socket.socket], load_engine: EngineLoader) -> None:
    """Serve with the engine in this process; raise the error if the model failed to load."""
    server = ApiServer(app_state, listeners, load_engine)
    server.run(listeners)
    if server.failure is not None:
        raise server.failure
    logger.info("stopped")


class ApiServer(HttpServer):
    def __init__(
        self, app_state: AppState, listeners: Sequence[socket.socket], load_engine: EngineLoader | None
    ) -> None:
        settings = app_state.settings
        self.startup_app = StartupApp(app_state, self.build_app)
        super().__init__(
            self.startup_app,
            keep_alive_s=settings.keep_alive_s,
            max_connections=limit_connections(settings),
            tls_context=make_tls_context(settings),
        )
        self.server_state.on_refused = app_state.admission.refusals.count
        self.app_state = app_state
        self.load_engine = load_engine
        self.listeners = listeners
        self.grpc_server: GrpcServer | None = None
        self.failure: BaseException | None = None
        self.background_tasks: list[asyncio.Task[None]] = []
        self.num_signals = 0
        self.owns_listeners = True  # False while other processes accept connections from the same sockets

    async def startup(self, sockets: Sequence[socket.socket]) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        await super().startup(sockets)
        releases = release_memory_after_bursts(self.app_state, has_engine=self.load_engine is not None)
        self.background_tasks.append(loop.create_task(releases))
        self.background_tasks.append(loop.create_task(watch_pressure(self.server_state, self.app_state.counters)))
        self.background_tasks.append(loop.create_task(self._finish_startup()))
        if self.tls_context is not None and self.app_state.settings.enable_ssl_refresh:
            self.background_tasks.append(
                loop.create_task(reload_certificates(self.tls_context, self.app_state.settings))
            )

    def build_app(self) -> ASGIApp:
        """Return the application with all routes; called once, in a thread, as the imports take long."""
        with no_collections():
            from cenote.api.app import build_app

            return build_app(self.app_state)

    async def _finish_startup(self) -> None:
        """Serve all routes, then load the engine: two threads that import modules would wait for each other."""
        try:
            self.server_state.app = await self.startup_app.get_app()
            if self.app_state.settings.grpc_port is not None:
                from cenote.api.grpc.server import GrpcServer  # here: grpcio is optional

                self.grpc_server = GrpcServer(self.app_state)
                await self.grpc_server.start()
            self.on_app_built()
        except Exception as error:
            self._on_failed(error)
            return
        if self.load_engine is not None:
            load_in_thread(self.load_engine, self._on_loaded, self._on_failed)
            self.background_tasks.append(asyncio.get_running_loop().create_task(self._watch_engine()))

    def on_app_built(self) -> None:
        """Called when all routes are served, those of gRPC too."""

    async def shutdown(self, sockets: Sequence[socket.socket]) -> None:
        """Drain all connections that have begun by now; cancel the rest after `shutdown_timeout_s`."""
        deadline = time.monotonic() + self.app_state.settings.shutdown_timeout_s
        if self.grpc_server is not None:
            self.grpc_server.begin_stop()
        for background_task in self.background_tasks:
            background_task.cancel()
        self.stop_accepting([])  # the listeners are closed when their backlog is drained
        await self._drain_backlog()
        while self._has_open_work() and time.monotonic() < deadline:
            await asyncio.sleep(POLL_INTERVAL_S)
        for pending in self.pending_connections:
            pending.cancel()
        unfinished = list(self.server_state.tasks)
        if unfinished:
            logger.warning("%d requests did not finish within shutdown_timeout_s", len(unfinished))
            for task in unfinished:
                task.cancel()
            await asyncio.wait(unfinished, timeout=FINAL_FLUSH_S)
        if self.grpc_server is not None:
            await self.grpc_server.wait_stopped()

    def _has_open_work(self) -> bool:
        return bool(self.server_state.connections or self.server_state.tasks or self.pending_connections)

    async def _drain_backlog(self) -> None:
        """Accept the connections that closing the listeners would reset; finish these and the ones from before."""
        self._accept_backlog()
        self._shut_down_connections()
        await asyncio.sleep(ROUND_TRIP_S)
        self._accept_backlog()
        for listener in self.listeners:
            listener.close()
        self._shut_down_connections()

    def _accept_backlog(self) -> None:
        for listener in self.listeners:
            if self.owns_listeners:
                refuse_new_connections(listener)
            while (client := accept_pending(listener)) is not None:
                self.accept_connection(client)

    def _shut_down_connections(self) -> None:
        for connection in list(self.server_state.connections):
            connection.shutdown()
        for pending in self.pending_connections:
            pending.add_done_callback(_close_connection)
            asyncio.get_running_loop().call_later(FINAL_HANDSHAKE_S, pending.cancel)

    def _on_signal(self, signal_number: int) -> None:
        name = signal.Signals(signal_number).name
        self.num_signals += 1
        if self.num_signals > 1:  # counted, as a shutdown for another reason may precede the first signal
            logger.warning("received %s again, exiting immediately", name)
            os._exit(128 + signal_number)
        num_in_flight, delay = self.app_state.num_in_flight, self.app_state.settings.shutdown_delay_s
        logger.info("received %s, draining %d requests", name, num_in_flight)
        self._begin_shutdown(delay if self.app_state.has_loaded else 0.0)

    def _begin_shutdown(self, delay_s: float) -> None:
        self.app_state.start_draining()
        asyncio.get_running_loop().call_later(delay_s, setattr, self, "should_exit", True)

    def _on_loaded(self, engine: Engine) -> None:
        self.app_state.set_engine(engine)
        self.log_banner()

    def log_banner(self) -> None:
        models = [BannerModel(model.names, model.status, model.model_info) for model in self.app_state.models]
        log_banner(self.app_state, self.listeners[0], models)

    def _on_failed(self, error: BaseException) -> None:
        self.failure = error
        self._begin_shutdown(0.0)

    async def _watch_engine(self) -> None:
        """Shut down when the engine in this process dies: it cannot be restarted here."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_S * 10)
            use = self.app_state.models.first.use
            if use is not None and use.engine.dead_error is not None:
                self._on_failed(EngineStopped(f"the engine has stopped: {use.engine.dead_error}"))
                return


def _close_connection(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is None:
        _, connection = task.result()
        connection.shutdown()
