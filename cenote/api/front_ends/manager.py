"""Start, restart and drain the front-end processes from the engine process."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from tempfile import TemporaryFile

from cenote.api.app_state import AppState
from cenote.api.front_ends.acceptor import CLOSED_COUNT, SLOT_BYTES, ConnectionCounts
from cenote.api.front_ends.channel import Channel
from cenote.api.front_ends.codec_requests import to_json
from cenote.api.front_ends.codec_results import encode_error
from cenote.api.front_ends.messages import (
    AllFrontEndsReady,
    Drain,
    EngineDead,
    EngineReady,
    FrontEndMessage,
    FrontEndReady,
    FrontEndStats,
    Init,
    Listening,
    ModelInfoAck,
    ModelInfoUpdate,
    OtherFrontEndsLoad,
)
from cenote.api.front_ends.rpc_server import EngineRpcServer
from cenote.errors import PoolingError
from cenote.protocol.engine import Engine

logger = logging.getLogger("cenote")

# before a front-end that died is restarted; doubled every time
MIN_RESTART_DELAY_S, MAX_RESTART_DELAY_S = 0.1, 10.0
HEALTHY_UPTIME_S = 30.0  # a front-end that ran this long is restarted after the minimum delay
LOAD_REPORT_INTERVAL_S = 0.1
EXIT_MARGIN_S = 2.0  # time for a front-end to exit, in addition to the time for its requests
# holds a few responses of usual size: a writer that fills it has to wake up once more; the system may allow less
SEND_BUFFER_BYTES = 4 * 1024**2
MAX_START_ATTEMPTS = 3  # of a front-end while none has ever listened


class FrontEndManager:
    """Run `api_server_count` front-end processes that share the listening sockets."""

    _supervisors: list[asyncio.Task[None]]
    _load_reporter: asyncio.Task[None]

    def __init__(
        self,
        app_state: AppState,
        listeners: Sequence[socket.socket],
        on_all_ready: Callable[[], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self.app_state = app_state
        self.listeners = listeners
        count = app_state.settings.api_server_count
        with TemporaryFile() as file:
            file.truncate(SLOT_BYTES * count)
            self.connection_counts = ConnectionCounts(file.fileno(), count)
            self.counts_fd = os.dup(file.fileno())
        self.on_all_ready = on_all_ready  # called when all have received EngineReady
        self.on_failed = on_failed  # called when front-ends cannot be started
        self.running: dict[int, FrontEndHandle] = {}
        self.any_listening = asyncio.Event()
        self._engine: Engine | None = None
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

    def set_engine(self, engine: Engine) -> None:
        self._engine = engine
        for front_end in self.running.values():
            front_end.set_engine(engine, self.broadcast_model_info)

    async def broadcast_model_info(self) -> None:
        """Send the current model info to every front-end and wait: the next request may reach any of them."""
        if self._engine is not None:
            model_info = to_json(self._engine.model_info)
            await asyncio.gather(
                *(front_end.update_model_info(model_info) for front_end in self.running.values() if front_end.is_ready)
            )

    def on_engine_died(self, error: PoolingError) -> None:
        for front_end in self.running.values():
            front_end.channel.send(EngineDead(encode_error(error)))

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
        status = await front_end.wait_exit_status()
        del self.running[front_end_id]
        self._check_all_ready()
        return f"(process {front_end.process.pid}) exited with {status}; {front_end.num_dropped} requests were lost"

    async def _start(self, front_end_id: int) -> FrontEndHandle:
        process, sock = spawn_front_end([self.counts_fd, *(listener.fileno() for listener in self.listeners)])
        front_end = FrontEndHandle(front_end_id, process, self._check_all_ready)
        await front_end.channel.connect(sock)
        front_end.channel.send(
            Init(self.app_state.settings, front_end_id, self.app_state.started_at, self.app_state.created)
        )
        if self._engine is not None:
            front_end.set_engine(self._engine, self.broadcast_model_info)
            if self._has_announced_ready:
                front_end.channel.send(AllFrontEndsReady())
        if self._draining.is_set():
            front_end.channel.send(Drain())
        return front_end

    def _check_all_ready(self) -> None:
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

    def __init__(self, front_end_id: int, process: subprocess.Popen[bytes], on_change: Callable[[], None]) -> None:
        self.front_end_id = front_end_id
        self.process = process
        self.channel: Channel[FrontEndMessage] = Channel(FrontEndMessage, self._on_message, self._on_disconnect)
        self.on_change = on_change  # called when it listens and when it is ready
        self.is_listening = self.is_ready = False
        self.exited = asyncio.Event()
        self.num_in_flight = 0
        self.num_dropped = 0
        self.rpc_server: EngineRpcServer | None = None
        self._sent_load = 0
        self._pending_updates: dict[int, asyncio.Future[None]] = {}
        self._update_ids = itertools.count(1)

    def set_engine(self, engine: Engine, broadcast_model_info: Callable[[], Awaitable[None]]) -> None:
        self.rpc_server = EngineRpcServer(engine, self.channel, broadcast_model_info)
        self.channel.send(EngineReady(to_json(engine.model_info)))

    async def update_model_info(self, model_info: bytes) -> None:
        update_id, acknowledged = next(self._update_ids), asyncio.get_running_loop().create_future()
        self._pending_updates[update_id] = acknowledged
        self.channel.send(ModelInfoUpdate(update_id, model_info))
        await asyncio.wait([acknowledged], timeout=EXIT_MARGIN_S)  # a front-end that hangs must not block the others
        self._pending_updates.pop(update_id, None)

    def send_load(self, num_in_flight_elsewhere: int) -> None:
        if num_in_flight_elsewhere != self._sent_load:
            self._sent_load = num_in_flight_elsewhere
            self.channel.send(OtherFrontEndsLoad(num_in_flight_elsewhere))

    async def wait_exit_status(self) -> str:
        """Return the exit status or signal; kill a process that closed its channel but does not exit."""
        try:
            code = await asyncio.to_thread(self.process.wait, EXIT_MARGIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = await asyncio.to_thread(self.process.wait)
        return f"status {code}" if code >= 0 else signal.Signals(-code).name

    def _on_message(self, message: FrontEndMessage, array_bytes: bytes | memoryview) -> None:
        if isinstance(message, Listening | FrontEndReady):
            self.is_listening |= isinstance(message, Listening)
            self.is_ready |= isinstance(message, FrontEndReady)
            self.on_change()
            return
        if isinstance(message, ModelInfoAck):
            if (acknowledged := self._pending_updates.pop(message.update_id, None)) is not None:
                acknowledged.set_result(None)
            return
        if isinstance(message, FrontEndStats):
            self.num_in_flight = message.num_in_flight
        assert self.rpc_server is not None, "front-ends send requests only after EngineReady"
        self.rpc_server.on_message(message)

    def _on_disconnect(self) -> None:
        self.exited.set()
        if self.rpc_server is not None:
            self.num_dropped = len(self.rpc_server.tasks)
            self.rpc_server.cancel_all()


def spawn_front_end(fds: Sequence[int]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a front-end process that inherits these file descriptors; return it and this side of its channel."""
    parent_sock, child_sock = socket.socketpair()
    for sock in (parent_sock, child_sock):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    fds = [child_sock.fileno(), *fds]
    # the same module search path as this process; front-ends do no linear algebra, so numpy needs no threads
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-m", "cenote.api.front_ends.front_end", *map(str, fds)]
    # Ctrl-C reaches every process of a terminal; only this one handles it, and blocked signals are inherited
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL, env=environment)
    except BaseException:
        parent_sock.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
        child_sock.close()
    parent_sock.setblocking(False)
    return process, parent_sock
