"""HTTP server: runs an ASGI app for the connections of listening sockets until it should exit."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable

from starlette.types import ASGIApp

from cenote.api.http.connection import HttpConnection
from cenote.api.http.server_state import ServerState
from cenote.api.sockets import BACKLOG

POLL_INTERVAL_S = 0.05


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
        self.servers: list[asyncio.Server] = []
        self.should_exit = False  # may be set in any thread

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve in a new event loop; uvloop is faster than the one of Python, but does not exist on Windows."""
        loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
        if os.name == "posix":
            import uvloop

            loop_factory = uvloop.new_event_loop
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(self.serve(sockets))

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await self.startup(sockets)
        while not self.should_exit:
            await asyncio.sleep(POLL_INTERVAL_S)
        await self.shutdown(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        for listener in sockets or []:
            server = await loop.create_server(
                self.make_connection, sock=listener, ssl=self.tls_context, backlog=BACKLOG
            )
            self.servers.append(server)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting; finish the requests being received or processed."""
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        while self.server_state.connections or self.server_state.tasks:
            await asyncio.sleep(POLL_INTERVAL_S)

    def make_connection(self) -> HttpConnection:
        return HttpConnection(self.server_state)
