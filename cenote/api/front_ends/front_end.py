"""A front-end process: an HTTP server in front of engines that run in other processes."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import uvloop
from starlette.types import ASGIApp

from cenote.api import log_config
from cenote.api.admission.counters import Counters
from cenote.api.app_state import AppState
from cenote.api.front_ends.balanced_acceptor import BalancedAcceptor
from cenote.api.front_ends.connection_counts import CLOSED_COUNT, ConnectionCounts
from cenote.api.front_ends.forwarded_metrics import ForwardedMetrics
from cenote.api.http.acceptor import Acceptor
from cenote.api.http.connection import HttpConnection
from cenote.api.http.server_state import ServerState
from cenote.api.memory_release import limit_kept_memory
from cenote.api.server import FINAL_FLUSH_S, ApiServer
from cenote.api.wire.channel import Channel
from cenote.api.wire.codec_errors import serialize_error
from cenote.api.wire.control_messages import (
    AllFrontEndsReady,
    Drain,
    EngineExited,
    EngineState,
    Init,
    LinkLost,
    Listening,
    LoadFailed,
    ModelStates,
    OtherFrontEndsLoad,
    PoisonFound,
    SupervisorToFrontEnd,
)
from cenote.api.wire.heartbeat import BusyStage, HeartbeatReader, HeartbeatWriter, LoopClock
from cenote.api.wire.link_sockets import LinkReceiver
from cenote.api.wire.messages import ArrayBytes, Done, Message
from cenote.utils.child_process import FRONT_END_OOM_SCORE, exit_with_parent, prefer_as_oom_victim
from cenote.utils.garbage_collection import no_collections

if TYPE_CHECKING:
    from cenote.api.front_ends.remote_engines import RemoteEngines

logger = logging.getLogger("cenote")

REPORT_INTERVAL_S = 0.1


def main(argv: Sequence[str]) -> int:
    exit_with_parent()
    prefer_as_oom_victim(FRONT_END_OOM_SCORE)
    limit_kept_memory()
    channel_fd, links_fd, heartbeat_fd, supervisor_fd, counts_fd, admission_fd, *listener_fds = map(int, argv)
    listeners = [socket.socket(fileno=fd) for fd in listener_fds]
    for listener in listeners:
        # non-blocking already, but Python's new object assumes blocking; duplicating such an object would then
        # make the file description, which all processes share, blocking
        listener.setblocking(False)
    front_end = FrontEndProcess(counts_fd, admission_fd, listeners, HeartbeatReader(supervisor_fd))
    HeartbeatWriter(heartbeat_fd, front_end.find_busy_stage).thread.start()
    uvloop.run(front_end.serve(socket.socket(fileno=channel_fd), socket.socket(fileno=links_fd)))
    return 1 if front_end.is_disconnected or front_end.failure is not None else 0


class FrontEndProcess:
    """Handle the messages of the supervisor and run the HTTP server."""

    server: FrontEndServer

    def __init__(
        self, counts_fd: int, admission_fd: int, listeners: Sequence[socket.socket], supervisor: HeartbeatReader
    ) -> None:
        self.counts_fd = counts_fd
        self.admission_fd = admission_fd
        self.listeners = listeners
        self.supervisor = supervisor
        self.clock = LoopClock()
        self.channel: Channel[SupervisorToFrontEnd] = Channel(
            SupervisorToFrontEnd,
            self._on_message,
            self._on_disconnect,
            self._on_unhandled,
            lambda call, _: self._release(call.engine_id),
        )
        self.engines: RemoteEngines | None = None  # made when its modules have been imported, after the server listens
        self._waiting_calls: list[Callable[[RemoteEngines], None]] = []
        self._link_receiver: LinkReceiver | None = None
        self.failure: BaseException | None = None  # why it cannot serve
        self._unhandled = ""  # why the state of the models is not known any more, until the next report of it
        self.metrics = ForwardedMetrics(self.channel)
        self.admin = self.channel.call  # the supervisor, which owns the models
        self.is_disconnected = False
        self.initialized = asyncio.Event()

    async def serve(self, sock: socket.socket, links: socket.socket) -> None:
        self.links = links
        await self.channel.connect(sock)
        await self.initialized.wait()
        if self.is_disconnected:
            return
        if self.failure is None:
            turning = asyncio.get_running_loop().create_task(self._turn_clock())
            await self.server.serve(self.listeners)
            turning.cancel()
            self.failure = self.server.failure
        if self.failure is not None:
            logger.error("front-end process %d cannot serve", os.getpid(), exc_info=self.failure)
            self.channel.send(LoadFailed(serialize_error(self.failure)))
        if self._link_receiver is not None:
            self._link_receiver.close()
        if self.engines is not None:
            self.engines.close()
        self.channel.close()

    def find_busy_stage(self) -> BusyStage:
        """Return what hangs, the event loop or the preprocessing of images; called by the heartbeat thread."""
        return self.clock.find_busy_stage() or (None if self.engines is None else self.engines.find_hang())

    def make_engines(self) -> None:
        """Follow what the supervisor has reported so far, and connect with the engines."""
        from cenote.api.front_ends.remote_engines import RemoteEngines  # imported by FrontEndServer.build_app

        self.engines = RemoteEngines(self.server.app_state, self)
        for call in self._waiting_calls:
            call(self.engines)
        self._waiting_calls.clear()
        self._link_receiver = LinkReceiver(
            self.links, self.engines.add_link, lambda engine_id: self.report(LinkLost(engine_id))
        )

    def call_engines(self, call: Callable[[RemoteEngines], None]) -> None:
        """Call now or, before the engines have been made, in the same order then."""
        if self.engines is None:
            self._waiting_calls.append(call)
        else:
            call(self.engines)

    async def _turn_clock(self) -> None:
        while True:
            self.clock.turn()
            await asyncio.sleep(REPORT_INTERVAL_S)

    def find_control_error(self) -> str:
        """Return why the supervisor cannot act, or is not understood; "" if it can."""
        hang = self.supervisor.read().describe_hang()
        return self._unhandled if hang is None else f"the supervisor {hang}"

    def report_stats(self) -> None:
        self.metrics.report(self.server.app_state.num_in_flight)

    def _on_message(self, message: SupervisorToFrontEnd, array_bytes: ArrayBytes) -> None:
        if isinstance(message, Init):
            self._initialize(message)
        elif isinstance(message, ModelStates):
            self.call_engines(lambda engines: engines.set_models(message))
            self._unhandled = ""
        elif isinstance(message, EngineState):
            self.call_engines(lambda engines: engines.set_state(message))
        elif isinstance(message, EngineExited):
            self.call_engines(lambda engines: engines.on_exited(message))
        elif isinstance(message, PoisonFound):
            self.call_engines(lambda engines: engines.add_poison(message))
        elif isinstance(message, AllFrontEndsReady):
            self.server.app_state.are_front_ends_ready = True
        elif isinstance(message, Drain):
            self.server.owns_listeners = True  # no front-end accepts connections any more
            self.server.start_shutdown()
        else:
            assert isinstance(message, OtherFrontEndsLoad), "all others are calls and replies"
            self.server.app_state.num_in_flight_elsewhere = message.num_in_flight

    async def _release(self, engine_id: int) -> Done:
        released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call_engines(lambda engines: engines.release(engine_id, released))
        await released
        return Done()

    def _initialize(self, init: Init) -> None:
        log_config.configure_logging(init.settings)
        counters = Counters(self.admission_fd, init.settings.api_server_count, init.front_end_id - 1)
        try:
            app_state = AppState(init.settings, counters)
        except Exception as error:  # a file that the supervisor could read has changed
            self.failure = error
            self.initialized.set()
            return
        app_state.started_at, app_state.created = init.started_at, init.created
        app_state.are_front_ends_ready = False
        app_state.find_control_error = self.find_control_error
        app_state.metrics, app_state.admin = self.metrics, self.admin
        self.server = FrontEndServer(app_state, self, init.front_end_id)
        self.initialized.set()

    def report(self, message: Message) -> None:
        self.channel.send(message)

    def _on_unhandled(self, error: Exception) -> None:
        self._unhandled = f"a message of the supervisor could not be handled ({type(error).__name__}: {error})"

    def _on_disconnect(self) -> None:
        """Exit: the supervisor has ended."""
        if self.initialized.is_set() and self.server.is_done:
            return  # the normal order: the channel closes last
        self.is_disconnected = True
        if self.initialized.is_set():
            logger.error("the supervisor has exited; front-end process %d exits as well", os.getpid())
            self.server.should_exit = True
            asyncio.get_running_loop().call_later(FINAL_FLUSH_S, os._exit, 1)
        self.initialized.set()


class FrontEndServer(ApiServer):
    """HTTP server of a front-end: its engine is remote, and it shuts down on a Drain message."""

    def __init__(self, app_state: AppState, front_end: FrontEndProcess, front_end_id: int) -> None:
        super().__init__(app_state, front_end.listeners, load_engine=None)
        self.front_end = front_end
        self.front_end_id = front_end_id
        self.connection_counts = ConnectionCounts(front_end.counts_fd, app_state.settings.api_server_count)
        self.is_closed = self.is_done = False
        self.owns_listeners = False

    async def startup(self, sockets: Sequence[socket.socket]) -> None:
        self._update_count()
        await super().startup(sockets)
        self.front_end.channel.send(Listening())
        self.background_tasks.append(asyncio.get_running_loop().create_task(self._report_periodically()))

    def build_app(self) -> ASGIApp:
        with no_collections():
            import cenote.api.front_ends.remote_engines  # noqa: F401  takes long: in the thread, before it is used
        return super().build_app()

    def on_app_built(self) -> None:
        self.front_end.make_engines()

    async def shutdown(self, sockets: Sequence[socket.socket]) -> None:
        self.is_closed = True
        self._update_count()
        await super().shutdown(sockets)
        self.front_end.report_stats()
        self.is_done = True

    def start_shutdown(self) -> None:
        if self.app_state.status != "draining":
            self._begin_shutdown(self.app_state.settings.shutdown_delay_s if self.app_state.has_loaded else 0.0)

    def _begin_shutdown(self, delay_s: float) -> None:
        super()._begin_shutdown(delay_s)
        self.front_end.call_engines(lambda engines: engines.start_draining())

    def _on_signal(self, signal_number: int) -> None:
        # a signal to the whole process group reaches the supervisor too, which then sends Drain
        self.start_shutdown()

    async def _report_periodically(self) -> None:
        while True:
            await asyncio.sleep(REPORT_INTERVAL_S)
            self.front_end.report_stats()

    def make_acceptor(self, listener: socket.socket) -> Acceptor:
        if self.app_state.settings.api_server_count == 1:
            return super().make_acceptor(listener)
        return BalancedAcceptor(
            listener,
            self.accept_connection,
            self.make_room,
            lambda: self.connection_counts.is_busier(self.front_end_id),
            can_refuse=self.tls_context is None,
        )

    def make_connection(self) -> HttpConnection:
        return CountedConnection(self._update_count, self.server_state)

    def _update_count(self) -> None:
        num_open = len(self.server_state.connections) + len(self.pending_connections)
        self.connection_counts.set(self.front_end_id, CLOSED_COUNT if self.is_closed else num_open)

    def accept_connection(self, client: socket.socket) -> None:
        super().accept_connection(client)
        self._update_count()

    def on_connected(self, task: asyncio.Task[Any]) -> None:
        super().on_connected(task)
        self._update_count()


class CountedConnection(HttpConnection):
    """HTTP connection that calls `on_closed()` when it is lost."""

    def __init__(self, on_closed: Callable[[], None], server_state: ServerState) -> None:
        super().__init__(server_state)
        self.on_closed = on_closed

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.on_closed()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
