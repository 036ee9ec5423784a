"""The front-end inside the supervisor process, for servers with a single front-end."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence

from cenote.api.app_state import AppState
from cenote.api.banner import log_banner
from cenote.api.front_ends.remote_engine import RemoteEngine
from cenote.api.server import ApiServer
from cenote.api.wire.control_messages import EngineExited, EngineState
from cenote.api.wire.link_sockets import make_link

logger = logging.getLogger("cenote")


class LocalFrontEnd:
    def __init__(
        self,
        app_state: AppState,
        listeners: Sequence[socket.socket],
        add_engine_link: Callable[[socket.socket], None],
        on_listening: Callable[[], None],
        on_link_lost: Callable[[], None],
    ) -> None:
        self.app_state = app_state
        self.listeners = listeners
        self.add_engine_link = add_engine_link  # called with the engine's end of a link
        self.remote_engine = RemoteEngine(self._on_engine_ready, on_link_lost)
        self.remote_engine.availability.replay_timeout_s = app_state.settings.replay_timeout_s
        self.remote_engine.availability.on_change = app_state.admission.set_engine_available
        self.remote_engine.on_replay = app_state.metrics.observe_replay
        self.server = LocalServer(app_state, listeners, on_listening, self.remote_engine.start_draining)

    async def serve(self) -> None:
        """Serve until a signal or a failure, then drain in-flight requests."""
        await self.server.serve(list(self.listeners))
        self.remote_engine.close()

    def connect_engine(self) -> None:
        """Connect with the engine process that has just been started."""
        ours, theirs = make_link()
        self.add_engine_link(theirs)
        self.remote_engine.start_connect(ours)

    def set_engine_state(self, state: EngineState) -> None:
        self.remote_engine.set_status(state.status, state.reason)

    def report_exit(self, exited: EngineExited) -> None:
        self.remote_engine.on_engine_exited(exited)

    def fail(self, error: BaseException) -> None:
        """Shut down because of an error."""
        self.server._on_failed(error)

    def _on_engine_ready(self) -> None:
        if self.app_state.engine_or_none is None:
            self.app_state.set_engine(self.remote_engine)
            log_banner(self.app_state, self.listeners[0], self.remote_engine.model_info)


class LocalServer(ApiServer):
    def __init__(
        self,
        app_state: AppState,
        listeners: Sequence[socket.socket],
        on_listening: Callable[[], None],
        on_draining: Callable[[], None],
    ) -> None:
        super().__init__(app_state, listeners, load_engine=None)
        self.on_listening = on_listening
        self.on_draining = on_draining

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_listening()

    def _begin_shutdown(self, delay_s: float) -> None:
        super()._begin_shutdown(delay_s)
        self.on_draining()
