"""Start, restart and drain the front-end processes."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from cenote.api.admission.counters import Counters, make_counters_file
from cenote.api.app_state import AppState
from cenote.api.front_ends.acceptor import CLOSED_COUNT, SLOT_BYTES, ConnectionCounts
from cenote.api.supervisor.spawn import describe_exit, spawn_module
from cenote.api.wire.channel import Channel
from cenote.api.wire.control_messages import (
    AllFrontEndsReady,
    Drain,
    EngineExited,
    EngineState,
    FrontEndReady,
    FrontEndStats,
    FrontEndToSupervisor,
    Init,
    LinkLost,
    Listening,
    OtherFrontEndsLoad,
    PoisonFound,
    ReplayStats,
)
from cenote.api.wire.link_sockets import make_link, make_link_sender, send_link
from cenote.api.wire.messages import ArrayBytes, MetricsCall, MetricsResponse
from cenote.errors import PoolingError
from cenote.utils.bounded_executor import BoundedExecutor
from cenote.utils.metrics import MetricFamily
from cenote.utils.shared_memory import make_shared_memory

logger = logging.getLogger("cenote")

# before a front-end that died is restarted; doubled every time
MIN_RESTART_DELAY_S, MAX_RESTART_DELAY_S = 0.1, 10.0
HEALTHY_UPTIME_S = 30.0  # a front-end that ran this long is restarted after the minimum delay
LOAD_REPORT_INTERVAL_S = 0.1
EXIT_MARGIN_S = 2.0  # time for a front-end to exit, in addition to the time for its requests
MAX_START_ATTEMPTS = 3  # of a front-end while none has ever listened


class FrontEndManager:
    """Run `api_server_count` front-end processes that share the listening sockets."""

    _supervisors: list[asyncio.Task[None]]
    _load_reporter: asyncio.Task[None]

    def __init__(
        self,
        app_state: AppState,
        listeners: Sequence[socket.socket],
        *,
        add_engine_link: Callable[[socket.socket], None],
        collect_metrics: Callable[[], Awaitable[list[MetricFamily]]],
        on_all_ready: Callable[[], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self.app_state = app_state
        self.listeners = listeners
        count = app_state.settings.api_server_count
        self.counts_fd = make_shared_memory(SLOT_BYTES * count)
        self.connection_counts = ConnectionCounts(self.counts_fd, count)
        self.admission_fd = make_counters_file(count)
        self.counters = Counters(self.admission_fd, count, row=None)
        app_state.use_counters(self.counters)
        self.add_engine_link = add_engine_link  # called with the engine's end of a link
        self.collect_metrics = collect_metrics  # of the whole server
        self.on_all_ready = on_all_ready  # called when all have received EngineReady
        self.on_failed = on_failed  # called when front-ends cannot be started
        self.running: dict[int, FrontEndHandle] = {}
        self.exit_waits = BoundedExecutor("exit-waits", num_threads=count, max_waiting=count)
        self.any_listening = asyncio.Event()
        self.model_info = b""  # as JSON, once an engine has loaded the model
        self._engine_state: EngineState | None = None
        self._last_exit: EngineExited | None = None
        self._has_engine = False
        self._draining = asyncio.Event()
        self._has_announced_ready = False

    @property
    def num_in_flight(self) -> int:
        return sum(front_end.num_in_flight for front_end in self.running.values())

    def start(self) -> None:
        numbers = range(1, self.app_state.settings.api_server_count + 1)
        for number in numbers:
            self.connection_counts.set(number, CLOSED_COUNT)
        self._supervisors = [asyncio.create_task(self._supervise(number)) for number in numbers]
        self._load_reporter = asyncio.create_task(self._report_load())

    def connect_engine(self) -> None:
        """Connect every front-end with the engine process that has just been started."""
        self._has_engine = True
        for front_end in self.running.values():
            self._connect(front_end)

    def set_engine_state(self, state: EngineState) -> None:
        self._engine_state = state
        for front_end in self.running.values():
            front_end.channel.send(state)

    def report_exit(self, exited: EngineExited) -> None:
        self._last_exit = exited
        for front_end in self.running.values():
            front_end.channel.send(exited)

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
        settings = self.app_state.settings
        timeout = settings.shutdown_delay_s + settings.shutdown_timeout_s + EXIT_MARGIN_S
        await asyncio.wait(self._supervisors, timeout=timeout)
        for front_end in self.running.values():
            logger.warning("front-end %d did not exit in time and is killed", front_end.front_end_id)
            front_end.process.kill()
        await asyncio.wait(self._supervisors)
        self._load_reporter.cancel()
        os.close(self.counts_fd)
        os.close(self.admission_fd)

    async def _supervise(self, front_end_id: int) -> None:
        """Run a front-end process and restart it when it exits, until the server drains."""
        delay, num_attempts = MIN_RESTART_DELAY_S, 0
        while not self._draining.is_set():
            started_at, num_attempts = time.monotonic(), num_attempts + 1
            exit_reason = await self._run_once(front_end_id)
            if self._draining.is_set():
                return
            if not self.any_listening.is_set() and num_attempts == MAX_START_ATTEMPTS:
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

    async def _run_once(self, front_end_id: int) -> str:
        """Start one front-end process, wait until it exits and return a description of its exit."""
        try:
            front_end = self.running[front_end_id] = await self._start(front_end_id)
        except OSError as error:  # for example the limit of processes is reached for the moment
            return f"could not be started ({error.strerror})"
        await front_end.exited.wait()
        self.connection_counts.set(front_end_id, CLOSED_COUNT)
        self.counters.clear_row(front_end_id - 1)
        status = await front_end.wait_exit_status()
        del self.running[front_end_id]
        self.check_all_ready()
        return f"(process {front_end.process.pid}) exited with {status}; {front_end.num_in_flight} requests were lost"

    async def _start(self, front_end_id: int) -> FrontEndHandle:
        front_end = FrontEndHandle(front_end_id, self)
        await front_end.start([self.counts_fd, self.admission_fd, *(listener.fileno() for listener in self.listeners)])
        app_state = self.app_state
        front_end.channel.send(
            Init(app_state.settings, front_end_id, app_state.started_at, app_state.created, self.model_info)
        )
        if self._last_exit is not None:
            front_end.channel.send(self._last_exit)
        if self._engine_state is not None:
            front_end.channel.send(self._engine_state)
        if self._has_engine:
            self._connect(front_end)
        if self._has_announced_ready:
            front_end.channel.send(AllFrontEndsReady())
        if self._draining.is_set():
            front_end.channel.send(Drain())
        return front_end

    def reconnect(self, front_end: FrontEndHandle) -> None:
        """Give a front-end another link, unless it has lost the last one because the engine process has exited."""
        if self._engine_state is not None and self._engine_state.status == "ready":
            self._connect(front_end)

    def _connect(self, front_end: FrontEndHandle) -> None:
        ours, theirs = make_link()
        front_end.add_link(ours)
        self.add_engine_link(theirs)

    def check_all_ready(self) -> None:
        """Announce readiness, once, when all running front-ends are ready; called when one changes state or exits."""
        if any(front_end.is_listening for front_end in self.running.values()):
            self.any_listening.set()
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
            total = self.num_in_flight
            for front_end in self.running.values():
                front_end.send_load(total - front_end.num_in_flight)


class FrontEndHandle:
    """One front-end process and the channel to it."""

    def __init__(self, front_end_id: int, manager: FrontEndManager) -> None:
        self.front_end_id = front_end_id
        self.manager = manager
        self.channel: Channel[FrontEndToSupervisor] = Channel(
            FrontEndToSupervisor, self._on_message, self._on_disconnect
        )
        self.is_listening = self.is_ready = False
        self.exited = asyncio.Event()
        self.num_in_flight = 0
        self._sent_load = 0
        self._metrics_tasks: set[asyncio.Task[None]] = set()

    async def start(self, fds: Sequence[int]) -> None:
        """Start the process, which inherits these file descriptors."""
        sock, child_sock = socket.socketpair()
        self._links, child_links = make_link_sender()
        try:
            self.process = spawn_front_end([child_sock.fileno(), child_links.fileno(), *fds])
        except BaseException:
            sock.close()
            self._links.close()
            raise
        finally:
            child_sock.close()
            child_links.close()
        sock.setblocking(False)
        await self.channel.connect(sock)

    def add_link(self, link: socket.socket) -> None:
        """Pass the front-end's end of a link to an engine to the process."""
        send_link(self._links, link)

    def send_load(self, num_in_flight_elsewhere: int) -> None:
        if num_in_flight_elsewhere != self._sent_load:
            self._sent_load = num_in_flight_elsewhere
            self.channel.send(OtherFrontEndsLoad(num_in_flight_elsewhere))

    async def wait_exit_status(self) -> str:
        """Return the exit status or signal; kill a process that closed its channel but does not exit."""
        try:
            code = await self.manager.exit_waits.run_admitted(self.process.wait, EXIT_MARGIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = await self.manager.exit_waits.run_admitted(self.process.wait)
        self._links.close()
        return describe_exit(code)

    def _on_message(self, message: FrontEndToSupervisor, array_bytes: ArrayBytes) -> None:
        if isinstance(message, Listening | FrontEndReady):
            self.is_listening |= isinstance(message, Listening)
            self.is_ready |= isinstance(message, FrontEndReady)
            self.manager.check_all_ready()
        elif isinstance(message, LinkLost):
            self.manager.reconnect(self)
        elif isinstance(message, PoisonFound):
            self.manager.forward_poison(message, self)
        elif isinstance(message, ReplayStats):
            self.manager.app_state.metrics.observe_replay(message)
        elif isinstance(message, FrontEndStats):
            self.num_in_flight = message.num_in_flight
            for reply in message.replies:
                self.manager.app_state.metrics.observe_http(*reply)
        else:
            task = asyncio.get_running_loop().create_task(self._send_metrics(message))
            self._metrics_tasks.add(task)
            task.add_done_callback(self._metrics_tasks.discard)

    async def _send_metrics(self, call: MetricsCall) -> None:
        self.channel.send(MetricsResponse(call.call_id, await self.manager.collect_metrics()))

    def _on_disconnect(self) -> None:
        self.exited.set()


def spawn_front_end(fds: Sequence[int]) -> subprocess.Popen[bytes]:
    # front-ends do no linear algebra, so numpy needs no threads
    return spawn_module("cenote.api.front_ends.front_end", fds, environment={"OPENBLAS_NUM_THREADS": "1"})
