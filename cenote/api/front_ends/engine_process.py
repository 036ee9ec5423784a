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

from cenote.api.app_state import AppState
from cenote.api.background_load import EngineLoader, load_in_thread
from cenote.api.banner import log_banner
from cenote.api.front_ends.manager import FrontEndManager
from cenote.api.sockets import make_tls_context
from cenote.errors import EngineStopped
from cenote.protocol.engine import Engine

logger = logging.getLogger("cenote")

POLL_INTERVAL_S = 0.5
# how long the first front-end may take to listen before the model is loaded all the same
FRONT_END_STARTUP_S = 1.5


def run_engine_process(app_state: AppState, listeners: Sequence[socket.socket], load_engine: EngineLoader) -> None:
    """Serve until a signal comes, then have answered what is on its way; raises what kept the model from loading."""
    process = EngineProcess(app_state, listeners, load_engine)
    uvloop.run(process.serve())
    if process.failure is not None:
        raise process.failure
    logger.info("stopped")


class EngineProcess:
    def __init__(self, app_state: AppState, listeners: Sequence[socket.socket], load_engine: EngineLoader) -> None:
        self.app_state = app_state
        self.listeners = listeners
        self.load_engine = load_engine
        self.failure: BaseException | None = None
        make_tls_context(app_state.settings)  # what is wrong with it shows here, and not once in every front-end
        self.front_ends = FrontEndManager(app_state, listeners, self._on_all_ready, self._on_failed)
        self._stop_requested = asyncio.Event()
        self._num_signals = 0

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        self.front_ends.start()
        beside = [loop.create_task(self._load_after_front_ends()), loop.create_task(self._watch_engine())]
        await self._stop_requested.wait()
        for task in beside:
            task.cancel()
        for each in self.listeners:
            each.close()  # front-ends have their own, and close them when they have greeted everybody
        await self.front_ends.drain()

    async def _load_after_front_ends(self) -> None:
        """Importing torch keeps a core busy that front-ends need to be there soon."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.front_ends.any_listening.wait(), FRONT_END_STARTUP_S)
        load_in_thread(self.load_engine, self._on_loaded, self._on_failed)

    def _on_signal(self, signal_number: int) -> None:
        name = signal.Signals(signal_number).name
        self._num_signals += 1
        if self._num_signals > 1:  # a stop for another reason may have begun before the first
            logger.warning("%s once more: stopping at once", name)
            os._exit(128 + signal_number)  # front-ends notice
        logger.info("%s: stopping; %d requests are on their way", name, self.front_ends.num_in_flight)
        self._begin_shutdown()

    def _begin_shutdown(self) -> None:
        self.app_state.start_draining()
        self._stop_requested.set()

    def _on_loaded(self, engine: Engine) -> None:
        self.app_state.set_engine(engine)
        self.front_ends.set_engine(engine)

    def _on_all_ready(self) -> None:
        if not self._stop_requested.is_set():
            log_banner(self.app_state, self.listeners[0])

    def _on_failed(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self._begin_shutdown()

    async def _watch_engine(self) -> None:
        """An engine that has died does not come back; whoever started this process may start another."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            engine = self.app_state.engine_or_none
            if engine is not None and engine.dead_error is not None:
                self.front_ends.on_engine_died(engine.dead_error)
                self._on_failed(EngineStopped(f"the engine has stopped: {engine.dead_error}"))
                return
