"""The server process: answers from its first second, and stops without losing a request."""

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
# for those who are told that no answer will come
FINAL_FLUSH_S = 1.0
# for clients that come at the last moment to agree on TLS
HANDSHAKE_TIMEOUT_S = 1.0


def run_server(app_state: AppState, listeners: Sequence[socket.socket], load_engine: EngineLoader) -> None:
    """Serve until a signal comes, then answer what is on its way; raises what kept the model from loading."""
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
            timeout_keep_alive=settings.keep_alive_s,  # type: ignore[arg-type]  # seconds, whole or not
        )
        config.load()
        config.ssl = make_tls_context(settings)
        super().__init__(config)
        self.app_state = app_state
        self.load_engine = load_engine
        self.listeners = [each.dup() for each in listeners]  # stay open a moment longer than those uvicorn closes
        self.failure: BaseException | None = None
        self.background_tasks: list[asyncio.Task[None]] = []
        self.pending_connections: set[asyncio.Task[Any]] = set()
        self.num_signals = 0

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ours are handled by the event loop, and a stop on request is a success."""
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
        """Whoever has connected is answered; then everybody is gone, or out of time."""
        limit = time.monotonic() + self.app_state.settings.shutdown_timeout_s
        for watcher in self.background_tasks:
            watcher.cancel()
        for server in self.servers:
            server.close()
        for each in sockets or []:
            each.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        self._drain_backlog()
        for arrival in self.pending_connections:
            arrival.add_done_callback(_close_connection)
            asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_S, arrival.cancel)
        while self._has_open_work() and time.monotonic() < limit:
            await asyncio.sleep(POLL_INTERVAL_S)
        for arrival in self.pending_connections:
            arrival.cancel()
        late = list(self.server_state.tasks)
        if late:
            logger.warning("%d requests were not answered in time", len(late))
            for task in late:
                task.cancel()
            await asyncio.wait(late, timeout=FINAL_FLUSH_S)

    def _has_open_work(self) -> bool:
        return bool(self.server_state.connections or self.server_state.tasks or self.pending_connections)

    def _drain_backlog(self) -> None:
        """Clients that the kernel has let in but nobody has greeted; closing the socket would cut them off."""
        for each in self.listeners:
            with each:
                while (client := _accept_pending(each)) is not None:
                    self.accept_connection(client)

    def accept_connection(self, client: socket.socket) -> None:
        """Beside everything else: a client may take its time over the TLS handshake, or speak no TLS at all."""
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        task = loop.create_task(loop.connect_accepted_socket(self.make_connection, client, ssl=self.config.ssl))
        self.pending_connections.add(task)
        task.add_done_callback(self.on_connected)

    def on_connected(self, task: asyncio.Task[Any]) -> None:
        self.pending_connections.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            logger.debug("a client did not get in: %s", error)  # most often one that speaks no TLS

    def make_connection(self) -> HttpConnection:
        return HttpConnection(config=self.config, server_state=self.server_state, app_state={})

    def _on_signal(self, signal_number: int) -> None:
        name = signal.Signals(signal_number).name
        self.num_signals += 1
        if self.num_signals > 1:  # a stop for another reason may have begun before the first
            logger.warning("%s once more: stopping at once", name)
            os._exit(128 + signal_number)
        num, delay = self.app_state.num_in_flight, self.app_state.settings.shutdown_delay_s
        logger.info("%s: stopping; %d requests are on their way", name, num)
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
        """An engine that has died does not come back; whoever started this process may start another."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_S * 10)
            engine = self.app_state.engine_or_none
            if engine is not None and engine.dead_error is not None:
                self._on_failed(EngineStopped(f"the engine has stopped: {engine.dead_error}"))
                return


def _accept_pending(listener: socket.socket) -> socket.socket | None:
    """Of those who wait to be let in; None if there are no more."""
    while True:
        try:
            return listener.accept()[0]
        except BlockingIOError:
            return None
        except (InterruptedError, ConnectionAbortedError):
            continue  # that one has gone
        except OSError as error:
            logger.error("clients that had connected cannot be let in: %s", error.strerror)
            return None


def _close_connection(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is None:
        _, connection = task.result()
        connection.shutdown()
