"""Start, restart and drain the front-end processes."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from cenote.api.front_ends.connection_counts import CLOSED_COUNT, SLOT_BYTES, ConnectionCounts
from cenote.api.server_context import ServerContext
from cenote.api.server_metrics import ServerMetrics
from cenote.api.supervisor.front_end_handle import EXIT_MARGIN_S, FrontEndHandle
from cenote.api.wire.control_messages import (
    AdminCall,
    AllFrontEndsReady,
    Drain,
    EngineExited,
    EngineState,
    Init,
    ModelStates,
    PoisonFound,
    ReleaseEngine,
)
from cenote.api.wire.heartbeat import HeartbeatWriter, LoopClock, make_heartbeat_file, read_beats
from cenote.api.wire.link_sockets import LINK_RETRY_S, make_link
from cenote.api.wire.messages import Message, MetricsCall
from cenote.errors import PoolingError
from cenote.utils.bounded_executor import BoundedExecutor
from cenote.utils.shared_memory import make_shared_memory

logger = logging.getLogger("cenote")

# before a front-end that died is restarted; doubled every time
MIN_RESTART_DELAY_S, MAX_RESTART_DELAY_S = 0.1, 10.0
HEALTHY_UPTIME_S = 30.0  # a front-end that ran this long is restarted after the minimum delay
LOAD_REPORT_INTERVAL_S = 0.1
MAX_START_ATTEMPTS = 3  # of a front-end that exits while none has ever listened
# before a front-end listens: importing its modules may take long when the cores are busy
STARTING_TIMEOUT_S = 60.0


class FrontEndManager:
    """Run `api_server_count` front-end processes that share the listening sockets."""

    _supervisors: list[asyncio.Task[None]]
    _load_reporter: asyncio.Task[None]

    def __init__(
        self,
        server: ServerContext,
        counters_fd: int,
        listeners: Sequence[socket.socket],
        *,
        add_engine_link: Callable[[int, socket.socket], None],
        answer: Callable[[AdminCall | MetricsCall], Awaitable[Message]],
        metrics: ServerMetrics,
        on_all_ready: Callable[[], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self.server = server
        self.counters_fd = counters_fd  # of server.counters
        self.listeners = listeners
        count = server.settings.api_server_count
        self.counts_fd = make_shared_memory(SLOT_BYTES * count)
        self.connection_counts = ConnectionCounts(self.counts_fd, count)
        self.heartbeat_fd = make_heartbeat_file()  # of this process, for the front-ends
        self._clock = LoopClock()
        self.add_engine_link = add_engine_link  # called with the engine's end of a link
        self.answer = answer  # of the calls of front-ends
        self.metrics = metrics
        self.on_all_ready = on_all_ready  # called when all have received EngineReady
        self.on_failed = on_failed  # called when front-ends cannot be started
        self.running: dict[int, FrontEndHandle] = {}
        self.exit_waits = BoundedExecutor("exit-waits", num_threads=count, max_waiting=count)
        self._any_listening = False
        self._models: ModelStates | None = None
        # by engine id: what a front-end that is started later is told
        self._engine_states: dict[int, EngineState] = {}
        self._last_exits: dict[int, EngineExited] = {}
        self._engine_ids: set[int] = set()  # of engines that have been started
        self._draining = asyncio.Event()
        self._has_announced_ready = False

    @property
    def num_in_flight(self) -> int:
        return sum(front_end.num_in_flight for front_end in self.running.values())

    def start(self) -> None:
        numbers = range(1, self.server.settings.api_server_count + 1)
        for number in numbers:
            self.connection_counts.set(number, CLOSED_COUNT)
        self._supervisors = [asyncio.create_task(self._supervise(number)) for number in numbers]
        self._load_reporter = asyncio.create_task(self._report_load())
        HeartbeatWriter(self.heartbeat_fd, self._clock.find_busy_stage).thread.start()

    def connect_engine(self, engine_id: int) -> None:
        """Connect every front-end with the engine process that has just been started."""
        self._engine_ids.add(engine_id)
        for front_end in self.running.values():
            self._connect(front_end, engine_id)

    def set_engine_state(self, state: EngineState) -> None:
        self._engine_states[state.engine_id] = state
        self._send(state)
        for front_end in self.running.values():
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
        self._engine_ids.discard(engine_id)
        self._engine_states.pop(engine_id, None)
        for front_end in self.running.values():
            front_end.lost_links.discard(engine_id)
        self._last_exits.pop(engine_id, None)
        calls = (front_end.channel.call(ReleaseEngine(engine_id)) for front_end in self.running.values())
        await asyncio.gather(*calls, return_exceptions=True)  # a front-end that has exited uses no engine

    def _send(self, message: Message) -> None:
        for front_end in self.running.values():
            front_end.channel.send(message)

    def forward_poison(self, found: PoisonFound, source: FrontEndHandle) -> None:
        """Tell the other front-ends: a client that retries may reach any of them."""
        for front_end in self.running.values():
            if front_end is not source:
                front_end.channel.send(found)

    async def drain(self) -> None:
        """Drain in-flight requests; return when all front-end processes have exited."""
        self._draining.set()
        for front_end in self.running.values():
            front_end.channel.send(Drain())
        settings = self.server.settings
        timeout = settings.shutdown_delay_s + settings.shutdown_timeout_s + EXIT_MARGIN_S
        await asyncio.wait(self._supervisors, timeout=timeout)
        for front_end in self.running.values():
            logger.warning("front-end %d did not exit in time and is killed", front_end.front_end_id)
            front_end.process.kill()
        await asyncio.wait(self._supervisors)
        self._load_reporter.cancel()
        os.close(self.heartbeat_fd)
        os.close(self.counts_fd)
        os.close(self.counters_fd)

    async def _supervise(self, front_end_id: int) -> None:
        """Run a front-end process and restart it when it exits, until the server drains."""
        delay, num_attempts = MIN_RESTART_DELAY_S, 0
        while not self._draining.is_set():
            started_at = time.monotonic()
            front_end = FrontEndHandle(front_end_id, self)
            try:
                exit_reason = await self._run_once(front_end)
                num_attempts += 1
            except OSError as error:  # for example the limit of processes is reached for the moment
                exit_reason = f"could not be started ({error.strerror})"
            except Exception as error:  # a defect: a front-end that is not watched would never come back
                logger.exception("front-end %d could not be managed", front_end_id)
                exit_reason = f"could not be managed ({type(error).__name__}: {error})"
                num_attempts += 1
            if self._draining.is_set():
                return
            if front_end.load_error is not None and not self._has_announced_ready:
                self.on_failed(front_end.load_error)
                return
            if not self._any_listening and num_attempts == MAX_START_ATTEMPTS:
                self.on_failed(
                    PoolingError(f"front-end processes exit before they listen: {exit_reason}; see their log")
                )
                return
            if time.monotonic() - started_at > HEALTHY_UPTIME_S:
                delay = MIN_RESTART_DELAY_S
            logger.error("front-end %d %s; restarting in %.1f s", front_end_id, exit_reason, delay)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), delay)
            delay = min(2 * delay, MAX_RESTART_DELAY_S)

    async def _run_once(self, front_end: FrontEndHandle) -> str:
        """Start one front-end process, wait until it exits and return a description of its exit."""
        front_end_id = front_end.front_end_id
        await front_end.start(
            [self.heartbeat_fd, self.counts_fd, self.counters_fd, *(item.fileno() for item in self.listeners)]
        )
        self.running[front_end_id] = front_end
        watcher = asyncio.create_task(self._watch(front_end))
        try:
            self._introduce(front_end)
        except Exception as error:  # for example no descriptors are left for its links
            front_end.kill(f"could not be connected ({error})")
        await front_end.exited.wait()
        watcher.cancel()
        self.connection_counts.set(front_end_id, CLOSED_COUNT)
        self.server.counters.clear_row(front_end_id - 1)
        end = await front_end.wait_exit()
        del self.running[front_end_id]
        self.check_all_ready()
        return f"(process {front_end.process.pid}) {end}; {front_end.num_in_flight} requests were lost"

    async def _watch(self, front_end: FrontEndHandle) -> None:
        """Kill a front-end process that hangs: the others would leave connections to it for ever."""
        async for beat in read_beats(front_end.heartbeat):
            late_s = 0.0 if front_end.is_listening else STARTING_TIMEOUT_S
            if (hang := beat.describe_hang(late_s)) is not None:
                front_end.kill(f"{hang} and was killed")

    def _introduce(self, front_end: FrontEndHandle) -> None:
        """Send a front-end that was just started all that the others know, and links to the engines."""
        server = self.server
        front_end.channel.send(Init(server.settings, front_end.front_end_id, server.started_at, server.created))
        known = (*self._last_exits.values(), *self._engine_states.values(), *filter(None, [self._models]))
        for message in known:
            front_end.channel.send(message)
        for engine_id in self._engine_ids:
            self._connect(front_end, engine_id)
        if self._has_announced_ready:
            front_end.channel.send(AllFrontEndsReady())
        if self._draining.is_set():
            front_end.channel.send(Drain())

    def reconnect(self, front_end: FrontEndHandle, engine_id: int) -> None:
        """Give a front-end another link, unless it has lost the last one because the engine process has exited."""
        if self.running.get(front_end.front_end_id) is not front_end:
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

    def _connect(self, front_end: FrontEndHandle, engine_id: int) -> None:
        ours, theirs = make_link()
        front_end.lost_links.discard(engine_id)
        if not front_end.add_link(ours, engine_id):  # its queue of links is full: it does not read them
            asyncio.get_running_loop().call_later(LINK_RETRY_S, self.reconnect, front_end, engine_id)
        self.add_engine_link(engine_id, theirs)

    def check_all_ready(self) -> None:
        """Announce readiness, once, when all running front-ends are ready; called when one changes state or exits."""
        self._any_listening |= any(front_end.is_listening for front_end in self.running.values())
        if (
            self._has_announced_ready
            or not self.running
            or not all(front_end.is_ready for front_end in self.running.values())
        ):
            return
        self._has_announced_ready = True
        for front_end in self.running.values():
            front_end.channel.send(AllFrontEndsReady())
        self.on_all_ready()

    async def _report_load(self) -> None:
        while True:
            await asyncio.sleep(LOAD_REPORT_INTERVAL_S)
            self._clock.turn()
            total = self.num_in_flight
            for front_end in self.running.values():
                front_end.send_load(total - front_end.num_in_flight)
