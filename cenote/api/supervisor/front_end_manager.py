"""Start, restart and drain the front-end processes."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Sequence

from cenote.api.front_ends.connection_counts import CLOSED_COUNT, SLOT_BYTES, ConnectionCounts
from cenote.api.supervisor.front_end_child import FrontEndChild, FrontEndSupervisor
from cenote.api.wire.control_messages import (
    AllFrontEndsReady,
    EngineExited,
    EngineState,
    Init,
    ModelStates,
    PoisonFound,
    ReleaseEngine,
)
from cenote.api.wire.heartbeat import HeartbeatWriter, LoopClock, make_heartbeat_file
from cenote.api.wire.link_sockets import LINK_RETRY_S, make_link
from cenote.api.wire.messages import Message
from cenote.utils.shared_memory import make_shared_memory

logger = logging.getLogger("cenote")

LOAD_REPORT_INTERVAL_S = 0.1


class FrontEndManager:
    """Run `api_server_count` front-end processes that share the listening sockets."""

    _load_reporter: asyncio.Task[None]

    def __init__(self, supervisor: FrontEndSupervisor, counters_fd: int, listeners: Sequence[socket.socket]) -> None:
        """`counters_fd`: of the counters of the server, closed at the end."""
        self.supervisor, self.server = supervisor, supervisor.context
        count = self.server.settings.api_server_count
        counts_fd = make_shared_memory(SLOT_BYTES * count)
        self.connection_counts = ConnectionCounts(counts_fd, count)
        self._heartbeat_fd = make_heartbeat_file()  # of this process, for the front-ends
        self._clock = LoopClock()
        self._fds = [self._heartbeat_fd, counts_fd, counters_fd]
        self.shared_fds = [*self._fds, *(listener.fileno() for listener in listeners)]
        self.front_ends = [FrontEndChild(number, self) for number in range(1, count + 1)]
        self.any_listening = False  # at any time
        self._models: ModelStates | None = None
        # by engine id: what a front-end that is started later is told
        self._engine_states: dict[int, EngineState] = {}
        self._last_exits: dict[int, EngineExited] = {}
        self._engine_ids: set[int] = set()  # of engines that have been started
        self._releasing: set[int] = set()  # of those that only finish requests in flight
        self.has_announced_ready = False

    @property
    def running(self) -> list[FrontEndChild]:
        return [front_end for front_end in self.front_ends if front_end.is_running]

    @property
    def num_in_flight(self) -> int:
        return sum(front_end.num_in_flight for front_end in self.running)

    def start(self) -> None:
        for front_end in self.front_ends:
            self.connection_counts.set(front_end.front_end_id, CLOSED_COUNT)
            front_end.start()
        self._load_reporter = asyncio.create_task(self._report_load())
        HeartbeatWriter(self._heartbeat_fd, self._clock.find_busy_stage).thread.start()

    def connect_engine(self, engine_id: int) -> None:
        """Connect every front-end with the engine process that has just been started."""
        self._engine_ids.add(engine_id)
        for front_end in self.running:
            self._connect(front_end, engine_id)

    def set_engine_state(self, state: EngineState) -> None:
        self._engine_states[state.engine_id] = state
        self._send(state)
        for front_end in self.running:
            if state.status == "ready" and state.engine_id in front_end.lost_links:
                self.reconnect(front_end, state.engine_id)

    def report_exit(self, exited: EngineExited) -> None:
        self._last_exits[exited.engine_id] = exited
        self._send(exited)

    def set_models(self, states: ModelStates) -> None:
        self._models = states
        self._send(states)

    async def release_engine(self, engine_id: int) -> None:
        """Have all front-ends send no more requests to an engine; return when those in flight are answered."""
        self._releasing.add(engine_id)
        calls = (front_end.channel.call(ReleaseEngine(engine_id)) for front_end in self.running)
        await asyncio.gather(*calls, return_exceptions=True)  # a front-end that has exited uses no engine

    def forget_engine(self, engine_id: int) -> None:
        """Drop what is known about an engine that has ended: until then, links that are lost are replaced."""
        self._engine_ids.discard(engine_id)
        self._releasing.discard(engine_id)
        self._engine_states.pop(engine_id, None)
        for front_end in self.running:
            front_end.lost_links.discard(engine_id)
        self._last_exits.pop(engine_id, None)

    def _send(self, message: Message) -> None:
        for front_end in self.running:
            front_end.channel.send(message)

    def forward_poison(self, found: PoisonFound, source: FrontEndChild) -> None:
        """Tell the other front-ends: a client that retries may reach any of them."""
        for front_end in self.running:
            if front_end is not source:
                front_end.channel.send(found)

    async def drain(self) -> None:
        """Drain in-flight requests; return when all front-end processes have exited."""
        await asyncio.gather(*(front_end.stop() for front_end in self.front_ends))
        self._load_reporter.cancel()
        for fd in self._fds:
            os.close(fd)

    def on_exited(self, front_end: FrontEndChild) -> None:
        self.connection_counts.set(front_end.front_end_id, CLOSED_COUNT)
        self.server.counters.clear_row(front_end.front_end_id - 1)
        self.check_all_ready()

    def introduce(self, front_end: FrontEndChild) -> None:
        """Send a front-end that was just started all that the others know, and links to the engines."""
        server = self.server
        front_end.channel.send(Init(server.settings, front_end.front_end_id, server.started_at, server.created))
        for engine_id in self._releasing:  # it has no request for them, and ignores what it is told about them
            front_end.channel.start_call(ReleaseEngine(engine_id))
        known = (*self._last_exits.values(), *self._engine_states.values(), *filter(None, [self._models]))
        for message in known:
            front_end.channel.send(message)
        for engine_id in self._engine_ids - self._releasing:
            self._connect(front_end, engine_id)
        if self.has_announced_ready:
            front_end.channel.send(AllFrontEndsReady())

    def reconnect(self, front_end: FrontEndChild, engine_id: int) -> None:
        """Give a front-end another link, unless it has lost the last one because the engine process has exited."""
        if not front_end.is_running:
            return
        state = self._engine_states.get(engine_id)
        if state is None or state.status != "ready":
            front_end.lost_links.add(engine_id)  # the next engine process gets links of its own
            return
        try:
            self._connect(front_end, engine_id)
        except OSError as error:
            logger.error(
                "front-end %d cannot be connected again (%s); trying again", front_end.front_end_id, error.strerror
            )
            asyncio.get_running_loop().call_later(LINK_RETRY_S, self.reconnect, front_end, engine_id)

    def _connect(self, front_end: FrontEndChild, engine_id: int) -> None:
        ours, theirs = make_link()
        front_end.lost_links.discard(engine_id)
        if not front_end.add_link(ours, engine_id):  # its queue of links is full: it does not read them
            asyncio.get_running_loop().call_later(LINK_RETRY_S, self.reconnect, front_end, engine_id)
        self.supervisor.add_engine_link(engine_id, theirs)

    def check_all_ready(self) -> None:
        """Announce readiness, once, when all running front-ends are ready; called when one changes state or exits."""
        self.any_listening |= any(front_end.is_ready for front_end in self.running)
        if self.has_announced_ready or not self.running or not all(front_end.is_settled for front_end in self.running):
            return
        self.has_announced_ready = True
        for front_end in self.running:
            front_end.channel.send(AllFrontEndsReady())
        self.supervisor.on_all_ready()

    async def _report_load(self) -> None:
        while True:
            await asyncio.sleep(LOAD_REPORT_INTERVAL_S)
            self._clock.turn()
            total = self.num_in_flight
            for front_end in self.running:
                front_end.send_load(total - front_end.num_in_flight)
