"""The front-end inside the supervisor process, for servers with a single front-end."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from cenote.api.app_state import AppState
from cenote.api.server import ApiServer
from cenote.api.wire.control_messages import EngineExited, EngineState, ModelStates, PoisonFound
from cenote.api.wire.link_sockets import make_link

if TYPE_CHECKING:
    from cenote.api.front_ends.remote_engines import RemoteEngines

logger = logging.getLogger("cenote")

EnginesCall = Callable[["RemoteEngines"], None]


class LocalFrontEnd:
    """Implement FrontEnds in this process."""

    def __init__(
        self,
        app_state: AppState,
        listeners: Sequence[socket.socket],
        add_engine_link: Callable[[int, socket.socket], None],
        on_listening: Callable[[], None],
        on_link_lost: Callable[[int], None],
        change_adapter: Callable[[int, str, str | None, bool], Awaitable[None]],
    ) -> None:
        self.app_state = app_state
        self.listeners = listeners
        self.add_engine_link = add_engine_link  # called with the engine's end of a link
        self.on_link_lost = on_link_lost
        self._change_adapter = change_adapter
        self.engines: RemoteEngines | None = None  # made when its modules have been imported, after the server listens
        self.server = LocalServer(app_state, listeners, on_listening, self._make_engines, self._start_draining)
        self._waiting_calls: list[EnginesCall] = []
        self._releases: dict[int, asyncio.Future[None]] = {}

    async def serve(self) -> None:
        """Serve until a signal or a failure, then drain in-flight requests."""
        await self.server.serve(self.listeners)
        if self.engines is not None:
            self.engines.close()

    def connect_engine(self, engine_id: int) -> None:
        """Connect with the engine process that has just been started; raise OSError if no descriptors are left."""
        ours, theirs = make_link()
        self.add_engine_link(engine_id, theirs)
        self._call(lambda engines: engines.add_link(ours, engine_id))

    def set_engine_state(self, state: EngineState) -> None:
        self._call(lambda engines: engines.set_state(state))

    def report_exit(self, exited: EngineExited) -> None:
        self._call(lambda engines: engines.on_exited(exited))

    def set_models(self, states: ModelStates) -> None:
        self._call(lambda engines: engines.set_models(states))

    async def release_engine(self, engine_id: int) -> None:
        """Send no more requests to an engine; return when those in flight are answered."""
        released = self._releases[engine_id] = asyncio.get_running_loop().create_future()
        self._call(lambda engines: engines.release(engine_id))
        try:
            await released
        finally:  # also when the caller waits no longer: what is in flight may end later
            del self._releases[engine_id]

    def _call(self, call: EnginesCall) -> None:
        """Call now or, before the engines have been made, in the same order then."""
        if self.engines is None:
            self._waiting_calls.append(call)
        else:
            call(self.engines)

    def _make_engines(self) -> None:
        from cenote.api.front_ends.remote_engines import RemoteEngines  # imported by LocalServer.build_app

        self.engines = RemoteEngines(self.app_state, self)
        for call in self._waiting_calls:
            call(self.engines)
        self._waiting_calls.clear()

    def _start_draining(self) -> None:
        self._call(lambda engines: engines.start_draining())

    def on_poison(self, found: PoisonFound) -> None:
        """There are no other front-ends to tell."""

    async def change_adapter(self, engine_id: int, name: str, path: str | None, in_place: bool) -> None:
        await self._change_adapter(engine_id, name, path, in_place)

    def on_released(self, engine_id: int) -> None:
        released = self._releases.get(engine_id)
        if released is not None and not released.done():
            released.set_result(None)

    def on_settled(self) -> None:
        if not self.app_state.is_draining:
            self.server.log_banner()

    def fail(self, error: BaseException) -> None:
        """Shut down because of an error."""
        self.server._on_failed(error)

    def stop(self) -> None:
        """Shut down as after a signal."""
        self.server._begin_shutdown(self.app_state.settings.shutdown_delay_s)


class LocalServer(ApiServer):
    def __init__(
        self,
        app_state: AppState,
        listeners: Sequence[socket.socket],
        on_listening: Callable[[], None],
        on_imported: Callable[[], None],
        on_draining: Callable[[], None],
    ) -> None:
        super().__init__(app_state, listeners, load_engine=None)
        self.on_listening = on_listening
        self.on_imported = on_imported
        self.on_draining = on_draining

    async def startup(self, sockets: Sequence[socket.socket]) -> None:
        await super().startup(sockets)
        self.on_listening()

    def build_app(self) -> ASGIApp:
        import cenote.api.front_ends.remote_engines  # noqa: F401  takes 0.2 s: in the thread, before it is used

        return super().build_app()

    def on_app_built(self) -> None:
        self.on_imported()

    def _begin_shutdown(self, delay_s: float) -> None:
        super()._begin_shutdown(delay_s)
        self.on_draining()
