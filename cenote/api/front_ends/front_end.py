"""A front-end process: HTTP as everywhere, in front of an engine that lives in the process which started this one."""

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
    line, shared, *listening = map(int, sys.argv[1:])
    sockets = [socket.socket(fileno=each) for each in listening]
    for each in sockets:
        # it is so already, but Python takes it for one that blocks; a copy would make it so, in all processes at once
        each.setblocking(False)
    front_end = FrontEndProcess(shared, sockets)
    uvloop.run(front_end.serve(socket.socket(fileno=line)))
    return 1 if front_end.is_disconnected else 0


class FrontEndProcess:
    """The line to the engine's process, and what is said over it."""

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
            assert self.remote_engine is not None, "there was something before"
            self.remote_engine.model_info = decode_model_info(message)
            self.channel.send(ModelInfoAck(message.update_id))
        elif isinstance(message, AllFrontEndsReady):
            self.server.app_state.are_front_ends_ready = True
        elif isinstance(message, Drain):
            self.server.start_shutdown()
        elif isinstance(message, OtherFrontEndsLoad):
            self.server.app_state.num_in_flight_elsewhere = message.num_in_flight
        else:
            assert self.remote_engine is not None, "an engine that is not there can neither answer nor die"
            if isinstance(message, EngineDead):
                self.remote_engine.dead_error = to_engine_error(message)
            else:
                self.remote_engine.on_response(message, array_bytes)

    def _initialize(self, init: Init) -> None:
        log_config.configure_logging(init.settings)
        service = AppState(init.settings)
        service.started_at, service.created, service.are_front_ends_ready = init.started_at, init.created, False
        self.server = FrontEndServer(service, self, init.front_end_id)
        self.initialized.set()

    def _on_disconnect(self) -> None:
        """The engine's process has ended: those who wait are told, nobody else is let in."""
        if self.initialized.is_set() and self.server.is_done:
            return  # after everything else, as it should be
        self.is_disconnected = True
        if self.remote_engine is not None:
            self.remote_engine.on_disconnect()
        if self.initialized.is_set():
            logger.error("the engine's process is gone; front-end process %d ends as well", os.getpid())
            self.server.should_exit = True
            asyncio.get_running_loop().call_later(FINAL_FLUSH_S, os._exit, 1)
        self.initialized.set()


class FrontEndServer(ApiServer):
    """A server whose engine comes over the line, and who ends when it is told to."""

    def __init__(self, app_state: AppState, front_end: FrontEndProcess, front_end_id: int) -> None:
        super().__init__(app_state, front_end.listeners, load_engine=None)
        self.front_end = front_end
        self.front_end_id = front_end_id
        self.connection_counts = ConnectionCounts(front_end.counts_fd, app_state.settings.api_server_count)
        self.acceptors = [
            BalancedAcceptor(each, self.accept_connection, lambda: self.connection_counts.is_busier(front_end_id))
            for each in front_end.listeners
        ]
        self.is_closed = self.is_done = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()
        self._update_count()
        for door in self.acceptors:
            door.start()
        self.front_end.channel.send(Listening())
        self.background_tasks.append(asyncio.get_running_loop().create_task(self._report_periodically()))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for door in self.acceptors:
            door.stop()
            door.listener.close()
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
        # whoever stops a whole group of processes stops the engine's as well, which then tells us the same
        self.start_shutdown()

    async def _report_periodically(self) -> None:
        while True:
            await asyncio.sleep(REPORT_INTERVAL_S)
            self.front_end.report_stats()

    def make_connection(self) -> HttpConnection:
        return CountedConnection(self._update_count, config=self.config, server_state=self.server_state, app_state={})

    def _update_count(self) -> None:
        num_inside = len(self.server_state.connections) + len(self.pending_connections)
        self.connection_counts.set(self.front_end_id, CLOSED_COUNT if self.is_closed else num_inside)

    def accept_connection(self, client: socket.socket) -> None:
        super().accept_connection(client)
        self._update_count()

    def on_connected(self, task: asyncio.Task[Any]) -> None:
        super().on_connected(task)
        self._update_count()


class CountedConnection(HttpConnection):
    """A client that tells when it leaves."""

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
