"""A front-end process: the HTTP server in front of an engine that runs in the parent process."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

import uvloop

from cenote.api import log_config
from cenote.api.app_state import AppState
from cenote.api.front_ends.acceptor import CLOSED_COUNT, BalancedAcceptor, ConnectionCounts
from cenote.api.front_ends.channel import Channel
from cenote.api.front_ends.codec_results import decode_error, decode_model_info
from cenote.api.front_ends.messages import (
    AllFrontEndsReady,
    Drain,
    EngineDead,
    EngineMessage,
    EngineReady,
    FrontEndReady,
    Init,
    Listening,
    ModelInfoAck,
    ModelInfoUpdate,
    OtherFrontEndsLoad,
)
from cenote.api.front_ends.remote_engine import RemoteEngine, engine_exited_error
from cenote.api.http_protocol import HttpConnection
from cenote.api.server import FINAL_FLUSH_S, ApiServer
from cenote.errors import PoolingError

logger = logging.getLogger("cenote")

REPORT_INTERVAL_S = 0.1


def main() -> int:
    channel_fd, counts_fd, *listener_fds = map(int, sys.argv[1:])
    listeners = [socket.socket(fileno=fd) for fd in listener_fds]
    for listener in listeners:
        # non-blocking already, but Python's new object assumes blocking; duplicating such an object would then
        # make the file description, which all processes share, blocking
        listener.setblocking(False)
    front_end = FrontEndProcess(counts_fd, listeners)
    uvloop.run(front_end.serve(socket.socket(fileno=channel_fd)))
    return 1 if front_end.is_disconnected else 0


class FrontEndProcess:
    """Handle the messages of the engine process and run the HTTP server."""

    server: FrontEndServer

    def __init__(self, counts_fd: int, listeners: Sequence[socket.socket]) -> None:
        self.counts_fd = counts_fd
        self.listeners = listeners
        self.channel: Channel[EngineMessage] = Channel(EngineMessage, self._on_message, self._on_disconnect)
        self.is_disconnected = False
        self.remote_engine: RemoteEngine | None = None
        self.initialized = asyncio.Event()

    async def serve(self, sock: socket.socket) -> None:
        await self.channel.connect(sock)
        await self.initialized.wait()
        if not self.is_disconnected:
            await self.server.serve([])
            self.channel.close()

    def report_stats(self) -> None:
        if self.remote_engine is not None:
            self.remote_engine.report_stats(self.server.app_state.num_in_flight)

    def _on_message(self, message: EngineMessage, array_bytes: bytes | memoryview) -> None:
        if isinstance(message, Init):
            self._initialize(message)
        elif isinstance(message, EngineReady):
            self.remote_engine = RemoteEngine(decode_model_info(message), self.channel)
            self.server.app_state.set_engine(self.remote_engine)
            self.channel.send(FrontEndReady())
        elif isinstance(message, ModelInfoUpdate):
            assert self.remote_engine is not None, "the first model info comes with EngineReady"
            self.remote_engine.model_info = decode_model_info(message)
            self.channel.send(ModelInfoAck(message.update_id))
        elif isinstance(message, AllFrontEndsReady):
            self.server.app_state.are_front_ends_ready = True
        elif isinstance(message, Drain):
            self.server.start_shutdown()
        elif isinstance(message, OtherFrontEndsLoad):
            self.server.app_state.num_in_flight_elsewhere = message.num_in_flight
        else:
            assert self.remote_engine is not None, "responses and EngineDead come after EngineReady"
            if isinstance(message, EngineDead):
                self.remote_engine.dead_error = to_engine_error(message)
            else:
                self.remote_engine.on_response(message, array_bytes)

    def _initialize(self, init: Init) -> None:
        log_config.configure_logging(init.settings)
        app_state = AppState(init.settings)
        app_state.started_at, app_state.created = init.started_at, init.created
        app_state.are_front_ends_ready = False
        self.server = FrontEndServer(app_state, self, init.front_end_id)
        self.initialized.set()

    def _on_disconnect(self) -> None:
        """Fail requests in flight and exit: the engine process has ended."""
        if self.initialized.is_set() and self.server.is_done:
            return  # the normal order: the channel closes last
        self.is_disconnected = True
        if self.remote_engine is not None:
            self.remote_engine.on_disconnect()
        if self.initialized.is_set():
            logger.error("the engine process has exited; front-end process %d exits as well", os.getpid())
            self.server.should_exit = True
            asyncio.get_running_loop().call_later(FINAL_FLUSH_S, os._exit, 1)
        self.initialized.set()


class FrontEndServer(ApiServer):
    """HTTP server of a front-end: its engine is remote, and it shuts down on a Drain message."""

    def __init__(self, app_state: AppState, front_end: FrontEndProcess, front_end_id: int) -> None:
        super().__init__(app_state, front_end.listeners, load_engine=None)
        self.front_end = front_end
        self.front_end_id = front_end_id
        self.connection_counts = ConnectionCounts(front_end.counts_fd, app_state.settings.api_server_count)
        self.acceptors = [
            BalancedAcceptor(listener, self.accept_connection, lambda: self.connection_counts.is_busier(front_end_id))
            for listener in front_end.listeners
        ]
        self.is_closed = self.is_done = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()
        self._update_count()
        for acceptor in self.acceptors:
            acceptor.start()
        self.front_end.channel.send(Listening())
        self.background_tasks.append(asyncio.get_running_loop().create_task(self._report_periodically()))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for acceptor in self.acceptors:
            acceptor.stop()
            acceptor.listener.close()
        self.is_closed = True
        self._update_count()
        await super().shutdown(sockets)
        self.front_end.report_stats()
        self.is_done = True

    def start_shutdown(self) -> None:
        if self.app_state.status != "draining":
            self._begin_shutdown(
                0.0 if self.app_state.engine_or_none is None else self.app_state.settings.shutdown_delay_s
            )

    def _on_signal(self, signal_number: int) -> None:
        # a signal to the whole process group reaches the engine process too, which then sends Drain
        self.start_shutdown()

    async def _report_periodically(self) -> None:
        while True:
            await asyncio.sleep(REPORT_INTERVAL_S)
            self.front_end.report_stats()

    def make_connection(self) -> HttpConnection:
        return CountedConnection(self._update_count, config=self.config, server_state=self.server_state, app_state={})

    def _update_count(self) -> None:
        num_open = len(self.server_state.connections) + len(self.pending_connections)
        self.connection_counts.set(self.front_end_id, CLOSED_COUNT if self.is_closed else num_open)

    def accept_connection(self, client: socket.socket) -> None:
        super().accept_connection(client)
        self._update_count()

    def on_connected(self, task: asyncio.Task[Any]) -> None:
        super().on_connected(task)
        self._update_count()


class CountedConnection(HttpConnection):
    """HTTP connection that calls `on_closed()` when it is lost."""

    def __init__(self, on_closed: Callable[[], None], **options: Any) -> None:
        super().__init__(**options)
        self.on_closed = on_closed

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.on_closed()


def to_engine_error(message: EngineDead) -> PoolingError:
    error = decode_error(message.error)
    return error if isinstance(error, PoolingError) else engine_exited_error()


if __name__ == "__main__":
    sys.exit(main())
