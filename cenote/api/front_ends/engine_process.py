"""The engine process of a server with several front-ends: load the model, serve the front-ends, exit after them."""

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
# loading starts when the first front-end listens, or after this time
FRONT_END_STARTUP_S = 1.5


def run_engine_process(app_state: AppState, listeners: Sequence[socket.socket], load_engine: EngineLoader) -> None:
    """Serve until a signal, then drain in-flight requests; raise the error if the model cannot be loaded."""
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
        make_tls_context(app_state.settings)  # reports an error here once instead of in every front-end
        self.front_ends = FrontEndManager(app_state, listeners, self._on_all_ready, self._on_failed)
        self._stop_requested = asyncio.Event()
        self._num_signals = 0

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        self.front_ends.start()
        background_tasks = [loop.create_task(self._load_after_front_ends()), loop.create_task(self._watch_engine())]
        await self._stop_requested.wait()
        for task in background_tasks:
            task.cancel()
        for listener in self.listeners:
            listener.close()  # front-ends have copies, and close them when they have accepted what was connected
        await self.front_ends.drain()

    async def _load_after_front_ends(self) -> None:
        """Load the model once a front-end listens: importing torch takes CPU time that front-ends need to start."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.front_ends.any_listening.wait(), FRONT_END_STARTUP_S)
        load_in_thread(self.load_engine, self._on_loaded, self._on_failed)

    def _on_signal(self, signal_number: int) -> None:
        name = signal.Signals(signal_number).name
        self._num_signals += 1
        if self._num_signals > 1:  # shutdown may have begun for another reason before the first
            logger.warning("received %s again, exiting immediately", name)
            os._exit(128 + signal_number)  # front-ends exit when their channel closes
        logger.info("received %s, draining %d requests", name, self.front_ends.num_in_flight)
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
        """Shut down when the engine has died: it cannot recover, and a supervisor can restart this process."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            engine = self.app_state.engine_or_none
            if engine is not None and engine.dead_error is not None:
                self.front_ends.on_engine_died(engine.dead_error)
                self._on_failed(EngineStopped(f"the engine has stopped: {engine.dead_error}"))
                return
