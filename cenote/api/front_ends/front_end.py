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
from cenote.api.app_state import Service
from cenote.api.front_ends.acceptor import CLOSED, Crowd, Door
from cenote.api.front_ends.channel import Channel
from cenote.api.front_ends.codec_requests import about_of, as_error
from cenote.api.front_ends.messages import (
    Aboard,
    AllAboard,
    Dead,
    Drain,
    Elsewhere,
    FromEngine,
    Listening,
    Noted,
    Ready,
    Renewed,
    Welcome,
)
from cenote.api.front_ends.remote_engine import RemoteEngine, gone
from cenote.api.http_protocol import Connection
from cenote.api.server import LAST_WORDS_S, Server
from cenote.errors import PoolingError

logger = logging.getLogger("cenote")

REPORT_EVERY_S = 0.1


def main() -> int:
    line, shared, *listening = map(int, sys.argv[1:])
    sockets = [socket.socket(fileno=each) for each in listening]
    for each in sockets:
        # it is so already, but Python takes it for one that blocks; a copy would make it so, in all processes at once
        each.setblocking(False)
    front_end = FrontEnd(shared, sockets)
    uvloop.run(front_end.serve(socket.socket(fileno=line)))
    return 1 if front_end.lost else 0


class FrontEnd:
    """The line to the engine's process, and what is said over it."""

    server: FrontEndServer

    def __init__(self, shared: int, listening: Sequence[socket.socket]) -> None:
        self.shared = shared
        self.listening = listening
        self.channel: Channel[FromEngine] = Channel(FromEngine, self._receive, self._gone)
        self.lost = False
        self.remote: RemoteEngine | None = None
        self.begun = asyncio.Event()

    async def serve(self, line: socket.socket) -> None:
        await self.channel.connect(line)
        await self.begun.wait()
        if not self.lost:
            await self.server.serve([])
            self.channel.close()

    def report(self) -> None:
        if self.remote is not None:
            self.remote.report(self.server.service.num_in_flight)

    def _receive(self, message: FromEngine, numbers: bytes | memoryview) -> None:
        if isinstance(message, Welcome):
            self._begin(message)
        elif isinstance(message, Ready):
            self.remote = RemoteEngine(about_of(message), self.channel)
            self.server.service.ready(self.remote)
            self.channel.send(Aboard())
        elif isinstance(message, Renewed):
            assert self.remote is not None, "there was something before"
            self.remote.about = about_of(message)
            self.channel.send(Noted(message.number))
        elif isinstance(message, AllAboard):
            self.server.service.others_ready = True
        elif isinstance(message, Drain):
            self.server.drain()
        elif isinstance(message, Elsewhere):
            self.server.service.num_elsewhere = message.num_in_flight
        else:
            assert self.remote is not None, "an engine that is not there can neither answer nor die"
            if isinstance(message, Dead):
                self.remote.dead = died(message)
            else:
                self.remote.answered(message, numbers)

    def _begin(self, welcome: Welcome) -> None:
        log_config.configure(welcome.settings)
        service = Service(welcome.settings)
        service.began, service.created, service.others_ready = welcome.began, welcome.created, False
        self.server = FrontEndServer(service, self, welcome.number)
        self.begun.set()

    def _gone(self) -> None:
        """The engine's process has ended: those who wait are told, nobody else is let in."""
        if self.begun.is_set() and self.server.done:
            return  # after everything else, as it should be
        self.lost = True
        if self.remote is not None:
            self.remote.lost()
        if self.begun.is_set():
            logger.error("the engine's process is gone; front-end process %d ends as well", os.getpid())
            self.server.should_exit = True
            asyncio.get_running_loop().call_later(LAST_WORDS_S, os._exit, 1)
        self.begun.set()


class FrontEndServer(Server):
    """A server whose engine comes over the line, and who ends when it is told to."""

    def __init__(self, service: Service, front_end: FrontEnd, number: int) -> None:
        super().__init__(service, front_end.listening, load=None)
        self.front_end = front_end
        self.number = number
        self.crowd = Crowd(front_end.shared, service.settings.api_server_count)
        self.doors = [Door(each, self.let_in, lambda: self.crowd.is_ahead(number)) for each in front_end.listening]
        self.closed = self.done = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()
        self._count()
        for door in self.doors:
            door.open()
        self.front_end.channel.send(Listening())
        self.watchers.append(asyncio.get_running_loop().create_task(self._report()))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for door in self.doors:
            door.close()
            door.listening.close()
        self.closed = True
        self._count()
        await super().shutdown(sockets)
        self.front_end.report()
        self.done = True

    def drain(self) -> None:
        if self.service.state != "draining":
            self._stop(0.0 if self.service.loaded is None else self.service.settings.shutdown_delay_s)

    def _on_signal(self, number: int) -> None:
        # whoever stops a whole group of processes stops the engine's as well, which then tells us the same
        self.drain()

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            self.front_end.report()

    def connection(self) -> Connection:
        return Guest(self._count, config=self.config, server_state=self.server_state, app_state={})

    def _count(self) -> None:
        num_inside = len(self.server_state.connections) + len(self.arriving)
        self.crowd.set(self.number, CLOSED if self.closed else num_inside)

    def let_in(self, client: socket.socket) -> None:
        super().let_in(client)
        self._count()

    def arrived(self, task: asyncio.Task[Any]) -> None:
        super().arrived(task)
        self._count()


class Guest(Connection):
    """A client that tells when it leaves."""

    def __init__(self, left: Callable[[], None], **options: Any) -> None:
        super().__init__(**options)
        self.left = left

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.left()


def died(message: Dead) -> PoolingError:
    error = as_error(message.fault)
    return error if isinstance(error, PoolingError) else gone()


if __name__ == "__main__":
    sys.exit(main())
