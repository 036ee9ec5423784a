"""Server process: serves while the model loads, and drains in-flight requests at shutdown."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn

from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.api.background_load import EngineLoader, load_in_thread
from cenote.api.banner import log_banner
from cenote.api.http_protocol import HttpConnection
from cenote.api.sockets import BACKLOG, make_tls_context, reload_certificates
from cenote.errors import EngineStopped
from cenote.protocol.engine import Engine

logger = logging.getLogger("cenote")

POLL_INTERVAL_S = 0.05
# seconds to send error responses to requests that did not finish in time
FINAL_FLUSH_S = 1.0
# seconds for the TLS handshakes of connections accepted during shutdown
HANDSHAKE_TIMEOUT_S = 1.0


def run_server(app_state: AppState, listeners: Sequence[socket.socket], load_engine: EngineLoader) -> None:
    """Serve until a signal, then drain in-flight requests; raise the error if the model failed to load."""
    server = ApiServer(app_state, listeners, load_engine)
    server.run(list(listeners))
    if server.failure is not None:
        raise server.failure
    logger.info("stopped")


class ApiServer(uvicorn.Server):
    def __init__(
        self, app_state: AppState, listeners: Sequence[socket.socket], load_engine: EngineLoader | None
    ) -> None:
        settings = app_state.settings
        config = uvicorn.Config(
            build_app(app_state),
            http=HttpConnection,
            loop="uvloop" if os.name == "posix" else "asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=settings.keep_alive_s,  # type: ignore[arg-type]  # uvicorn accepts float seconds
        )
        config.load()
        config.ssl = make_tls_context(settings)
        super().__init__(config)
        self.app_state = app_state
        self.load_engine = load_engine
        self.listeners = [
            listener.dup() for listener in listeners
        ]  # uvicorn closes its own before the backlog is drained
        self.failure: BaseException | None = None
        self.background_tasks: list[asyncio.Task[None]] = []
        self.pending_connections: set[asyncio.Task[Any]] = set()
        self.num_signals = 0

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Disable uvicorn's signal handling: the event loop handles signals, and a requested stop exits with 0."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        await super().startup(sockets)
        if self.load_engine is not None:
            load_in_thread(self.load_engine, self._on_loaded, self._on_failed)
        self.background_tasks.append(loop.create_task(self._watch_engine()))
        if self.config.ssl is not None and self.app_state.settings.enable_ssl_refresh:
            self.background_tasks.append(
                loop.create_task(reload_certificates(self.config.ssl, self.app_state.settings))
            )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain all connections accepted by now; cancel the rest after `shutdown_timeout_s`."""
        deadline = time.monotonic() + self.app_state.settings.shutdown_timeout_s
        for background_task in self.background_tasks:
            background_task.cancel()
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        self._drain_backlog()
        for pending in self.pending_connections:
            pending.add_done_callback(_close_connection)
            asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_S, pending.cancel)
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

    def _has_open_work(self) -> bool:
        return bool(self.server_state.connections or self.server_state.tasks or self.pending_connections)

    def _drain_backlog(self) -> None:
        """Accept the connections in the kernel's backlog, which closing the listener would reset."""
        for listener in self.listeners:
            with listener:
                while (client := _accept_pending(listener)) is not None:
                    self.accept_connection(client)

    def accept_connection(self, client: socket.socket) -> None:
        """Start the connection in a task: the TLS handshake may be slow or fail."""
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        task = loop.create_task(loop.connect_accepted_socket(self.make_connection, client, ssl=self.config.ssl))
        self.pending_connections.add(task)
        task.add_done_callback(self.on_connected)

    def on_connected(self, task: asyncio.Task[Any]) -> None:
        self.pending_connections.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            logger.debug("TLS handshake failed: %s", error)  # usually a client that does not use TLS

    def make_connection(self) -> HttpConnection:
        return HttpConnection(config=self.config, server_state=self.server_state, app_state={})

    def _on_signal(self, signal_number: int) -> None:
        name = signal.Signals(signal_number).name
        self.num_signals += 1
        if self.num_signals > 1:  # counted, as a shutdown for another reason may precede the first signal
            logger.warning("received %s again, exiting immediately", name)
            os._exit(128 + signal_number)
        num_in_flight, delay = self.app_state.num_in_flight, self.app_state.settings.shutdown_delay_s
        logger.info("received %s, draining %d requests", name, num_in_flight)
        self._begin_shutdown(0.0 if self.app_state.engine_or_none is None else delay)

    def _begin_shutdown(self, delay_s: float) -> None:
        self.app_state.start_draining()
        asyncio.get_running_loop().call_later(delay_s, setattr, self, "should_exit", True)

    def _on_loaded(self, engine: Engine) -> None:
        self.app_state.set_engine(engine)
        log_banner(self.app_state, self.listeners[0])

    def _on_failed(self, error: BaseException) -> None:
        self.failure = error
        self._begin_shutdown(0.0)

    async def _watch_engine(self) -> None:
        """Shut down when the engine dies: it cannot be restarted in this process."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_S * 10)
            engine = self.app_state.engine_or_none
            if engine is not None and engine.dead_error is not None:
                self._on_failed(EngineStopped(f"the engine has stopped: {engine.dead_error}"))
                return


def _accept_pending(listener: socket.socket) -> socket.socket | None:
    """Accept one connection from the backlog; None if it is empty."""
    while True:
        try:
            return listener.accept()[0]
        except BlockingIOError:
            return None
        except (InterruptedError, ConnectionAbortedError):
            continue  # the client has disconnected
        except OSError as error:
            logger.error("accept() failed: %s", error.strerror)
            return None


def _close_connection(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is None:
        _, connection = task.result()
        connection.shutdown()
