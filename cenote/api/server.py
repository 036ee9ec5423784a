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

from cenote.api.app import build
from cenote.api.app_state import Service
from cenote.api.background_load import Load, load_beside
from cenote.api.banner import banner
from cenote.api.http_protocol import Connection
from cenote.api.sockets import BACKLOG, refresh, tls_context
from cenote.errors import EngineStopped
from cenote.protocol.requests import Engine

logger = logging.getLogger("cenote")

LOOK_S = 0.05
# for those who are told that no answer will come
LAST_WORDS_S = 1.0
# for clients that come at the last moment to agree on TLS
HANDSHAKE_S = 1.0


def run(service: Service, sockets: Sequence[socket.socket], load: Load) -> None:
    """Serve until a signal comes, then answer what is on its way; raises what kept the model from loading."""
    server = Server(service, sockets, load)
    server.run(list(sockets))
    if server.failure is not None:
        raise server.failure
    logger.info("stopped")


class Server(uvicorn.Server):
    def __init__(self, service: Service, sockets: Sequence[socket.socket], load: Load | None) -> None:
        settings = service.settings
        config = uvicorn.Config(
            build(service),
            http=Connection,
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
        config.ssl = tls_context(settings)
        super().__init__(config)
        self.service = service
        self.load = load
        self.listening = [each.dup() for each in sockets]  # stay open a moment longer than those uvicorn closes
        self.failure: BaseException | None = None
        self.watchers: list[asyncio.Task[None]] = []
        self.arriving: set[asyncio.Task[Any]] = set()
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
        if self.load is not None:
            load_beside(self.load, self._loaded, self._failed)
        self.watchers.append(loop.create_task(self._watch_engine()))
        if self.config.ssl is not None and self.service.settings.enable_ssl_refresh:
            self.watchers.append(loop.create_task(refresh(self.config.ssl, self.service.settings)))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Whoever has connected is answered; then everybody is gone, or out of time."""
        limit = time.monotonic() + self.service.settings.shutdown_timeout_s
        for watcher in self.watchers:
            watcher.cancel()
        for server in self.servers:
            server.close()
        for each in sockets or []:
            each.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        self._accept_the_rest()
        for arrival in self.arriving:
            arrival.add_done_callback(_ask_to_leave)
            asyncio.get_running_loop().call_later(HANDSHAKE_S, arrival.cancel)
        while self._unfinished() and time.monotonic() < limit:
            await asyncio.sleep(LOOK_S)
        for arrival in self.arriving:
            arrival.cancel()
        late = list(self.server_state.tasks)
        if late:
            logger.warning("%d requests were not answered in time", len(late))
            for task in late:
                task.cancel()
            await asyncio.wait(late, timeout=LAST_WORDS_S)

    def _unfinished(self) -> bool:
        return bool(self.server_state.connections or self.server_state.tasks or self.arriving)

    def _accept_the_rest(self) -> None:
        """Clients that the kernel has let in but nobody has greeted; closing the socket would cut them off."""
        for each in self.listening:
            with each:
                while (client := _next_client(each)) is not None:
                    self.let_in(client)

    def let_in(self, client: socket.socket) -> None:
        """Beside everything else: a client may take its time over the TLS handshake, or speak no TLS at all."""
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        task = loop.create_task(loop.connect_accepted_socket(self.connection, client, ssl=self.config.ssl))
        self.arriving.add(task)
        task.add_done_callback(self.arrived)

    def arrived(self, task: asyncio.Task[Any]) -> None:
        self.arriving.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            logger.debug("a client did not get in: %s", error)  # most often one that speaks no TLS

    def connection(self) -> Connection:
        return Connection(config=self.config, server_state=self.server_state, app_state={})

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        self.num_signals += 1
        if self.num_signals > 1:  # a stop for another reason may have begun before the first
            logger.warning("%s once more: stopping at once", name)
            os._exit(128 + number)
        num, delay = self.service.num_in_flight, self.service.settings.shutdown_delay_s
        logger.info("%s: stopping; %d requests are on their way", name, num)
        self._stop(0.0 if self.service.loaded is None else delay)

    def _stop(self, delay_s: float) -> None:
        self.service.drain()
        asyncio.get_running_loop().call_later(delay_s, setattr, self, "should_exit", True)

    def _loaded(self, engine: Engine) -> None:
        self.service.ready(engine)
        banner(self.service, self.listening[0])

    def _failed(self, error: BaseException) -> None:
        self.failure = error
        self._stop(0.0)

    async def _watch_engine(self) -> None:
        """An engine that has died does not come back; whoever started this process may start another."""
        while True:
            await asyncio.sleep(LOOK_S * 10)
            engine = self.service.loaded
            if engine is not None and engine.dead is not None:
                self._failed(EngineStopped(f"the engine has stopped: {engine.dead}"))
                return


def _next_client(listening: socket.socket) -> socket.socket | None:
    """Of those who wait to be let in; None if there are no more."""
    while True:
        try:
            return listening.accept()[0]
        except BlockingIOError:
            return None
        except (InterruptedError, ConnectionAbortedError):
            continue  # that one has gone
        except OSError as error:
            logger.error("clients that had connected cannot be let in: %s", error.strerror)
            return None


def _ask_to_leave(arrival: asyncio.Task[Any]) -> None:
    if not arrival.cancelled() and arrival.exception() is None:
        _, connection = arrival.result()
        connection.shutdown()
