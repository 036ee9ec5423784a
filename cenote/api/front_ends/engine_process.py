"""The engine's process behind front-ends: loads the model, answers them, and ends after them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress

import uvloop

from cenote.api.app_state import Service
from cenote.api.background_load import Load, load_beside
from cenote.api.banner import banner
from cenote.api.front_ends.manager import FrontEnds
from cenote.api.sockets import tls_context
from cenote.errors import EngineStopped
from cenote.protocol.requests import Engine

logger = logging.getLogger("cenote")

LOOK_S = 0.5
# how long the first front-end may take to listen before the model is loaded all the same
HEAD_START_S = 1.5


def run(service: Service, sockets: Sequence[socket.socket], load: Load) -> None:
    """Serve until a signal comes, then have answered what is on its way; raises what kept the model from loading."""
    process = EngineProcess(service, sockets, load)
    uvloop.run(process.serve())
    if process.failure is not None:
        raise process.failure
    logger.info("stopped")


class EngineProcess:
    def __init__(self, service: Service, sockets: Sequence[socket.socket], load: Load) -> None:
        self.service = service
        self.sockets = sockets
        self.load = load
        self.failure: BaseException | None = None
        tls_context(service.settings)  # what is wrong with it shows here, and not once in every front-end
        self.front_ends = FrontEnds(service, sockets, self._all_aboard, self._failed)
        self._stopping = asyncio.Event()
        self._num_signals = 0

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        self.front_ends.start()
        beside = [loop.create_task(self._load()), loop.create_task(self._watch_engine())]
        await self._stopping.wait()
        for task in beside:
            task.cancel()
        for each in self.sockets:
            each.close()  # front-ends have their own, and close them when they have greeted everybody
        await self.front_ends.drain()

    async def _load(self) -> None:
        """Importing torch keeps a core busy that front-ends need to be there soon."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.front_ends.any_came_up.wait(), HEAD_START_S)
        load_beside(self.load, self._loaded, self._failed)

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        self._num_signals += 1
        if self._num_signals > 1:  # a stop for another reason may have begun before the first
            logger.warning("%s once more: stopping at once", name)
            os._exit(128 + number)  # front-ends notice
        logger.info("%s: stopping; %d requests are on their way", name, self.front_ends.num_in_flight)
        self._stop()

    def _stop(self) -> None:
        self.service.drain()
        self._stopping.set()

    def _loaded(self, engine: Engine) -> None:
        self.service.ready(engine)
        self.front_ends.ready(engine)

    def _all_aboard(self) -> None:
        if not self._stopping.is_set():
            banner(self.service, self.sockets[0])

    def _failed(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self._stop()

    async def _watch_engine(self) -> None:
        """An engine that has died does not come back; whoever started this process may start another."""
        while True:
            await asyncio.sleep(LOOK_S)
            engine = self.service.loaded
            if engine is not None and engine.dead is not None:
                self.front_ends.died(engine.dead)
                self._failed(EngineStopped(f"the engine has stopped: {engine.dead}"))
                return
