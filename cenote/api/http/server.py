"""HTTP server: accepts the connections of listening sockets until it should exit."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any

from starlette.types import ASGIApp

from cenote.api.http.acceptor import Acceptor
from cenote.api.http.connection import HttpConnection
from cenote.api.http.server_state import ServerState

logger = logging.getLogger("cenote")

POLL_INTERVAL_S = 0.05
HANDSHAKE_TIMEOUT_S = 10.0  # of TLS
# A handshake that takes longer than this is given up when a connection finds no room.
SLOW_HANDSHAKE_S = 1.0


class HttpServer:
    def __init__(
        self,
        app: ASGIApp,
        *,
        keep_alive_s: float,
        max_connections: int = 4096,
        tls_context: ssl.SSLContext | None = None,
    ) -> None:
        self.server_state = ServerState(app, keep_alive_s, max_connections)
        self.tls_context = tls_context
        self.acceptors: list[Acceptor] = []
        # connections that have been accepted and not made yet, as those with TLS need a handshake, by age
        self.pending_connections: dict[asyncio.Task[Any], float] = {}
        self.should_exit = False  # may be set in any thread

    def run(self, sockets: Sequence[socket.socket]) -> None:
        """Serve in a new event loop; uvloop is faster than the one of Python, but does not exist on Windows."""
        loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
        if os.name == "posix":
            import uvloop

            loop_factory = uvloop.new_event_loop
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(self.serve(sockets))

    async def serve(self, sockets: Sequence[socket.socket]) -> None:
        await self.startup(sockets)
        while not self.should_exit:
            await asyncio.sleep(POLL_INTERVAL_S)
        await self.shutdown(sockets)

    async def startup(self, sockets: Sequence[socket.socket]) -> None:
        for listener in sockets:
            listener.setblocking(False)
            self.acceptors.append(self.make_acceptor(listener))
            self.acceptors[-1].start()

    async def shutdown(self, sockets: Sequence[socket.socket]) -> None:
        """Stop accepting; finish the requests being received or processed."""
        self.stop_accepting(sockets)
        for connection in list(self.server_state.connections):
            connection.shutdown()
        while self.server_state.connections or self.server_state.tasks:
            await asyncio.sleep(POLL_INTERVAL_S)

    def stop_accepting(self, sockets: Sequence[socket.socket]) -> None:
        for acceptor in self.acceptors:
            acceptor.stop()
        for listener in sockets:
            listener.close()

    def make_acceptor(self, listener: socket.socket) -> Acceptor:
        return Acceptor(listener, self.accept_connection, self.make_room, can_refuse=self.tls_context is None)

    def make_connection(self) -> HttpConnection:
        return HttpConnection(self.server_state)

    def make_room(self, message: str) -> bool:
        """Called when no descriptor is left: close a connection that does nothing; return whether there was one."""
        self.server_state.on_refused("descriptors", message)
        return self._close_idle_connection()

    def accept_connection(self, client: socket.socket) -> None:
        """Start the connection in a task: the TLS handshake may be slow or fail."""
        client.setblocking(False)
        state, tls = self.server_state, self.tls_context
        num_open = len(state.connections) + len(self.pending_connections)
        if tls is not None and num_open >= state.max_connections and not self._close_idle_connection():
            state.on_refused("connections", state.limit_message)
            client.close()
            return
        loop = asyncio.get_running_loop()
        timeout_s = None if tls is None else HANDSHAKE_TIMEOUT_S
        task = loop.create_task(
            loop.connect_accepted_socket(self.make_connection, client, ssl=tls, ssl_handshake_timeout=timeout_s)
        )
        self.pending_connections[task] = time.monotonic()
        task.add_done_callback(self.on_connected)

    def on_connected(self, task: asyncio.Task[Any]) -> None:
        del self.pending_connections[task]
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            logger.debug("TLS handshake failed: %s", error)  # usually a client that does not use TLS

    def _close_idle_connection(self) -> bool:
        for task, accepted_at in self.pending_connections.items():
            if time.monotonic() - accepted_at < SLOW_HANDSHAKE_S:
                break
            if not task.cancelling():
                task.cancel()
                return True
        return self.server_state.close_idle_connection()
