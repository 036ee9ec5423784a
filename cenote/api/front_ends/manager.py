"""The front-end processes as the engine's process sees them: started, answered, started again, asked to end."""

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

from cenote.api.app_state import Service
from cenote.api.front_ends.acceptor import CLOSED, SLOT_BYTES, Crowd
from cenote.api.front_ends.channel import Channel
from cenote.api.front_ends.codec_requests import as_fault, as_json
from cenote.api.front_ends.messages import (
    Aboard,
    AllAboard,
    Dead,
    Drain,
    Elsewhere,
    FromFrontEnd,
    Listening,
    Noted,
    Ready,
    Renewed,
    Seen,
    Welcome,
)
from cenote.api.front_ends.rpc_server import Answering
from cenote.errors import PoolingError
from cenote.protocol.requests import Engine

logger = logging.getLogger("cenote")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0  # before a front-end that died is started again; twice as long every time
HEALTHY_S = 30.0  # one that lived so long starts again as if it were the first time
TELL_EVERY_S = 0.1
MARGIN_S = 2.0  # what a front-end may take to end, apart from its requests
# a few answers of usual size: whoever finds no room for one is woken once more; the system may allow less
SEND_BYTES = 4 * 1024**2
NUM_TRIES = 3  # of a front-end, when not one has ever come up


class FrontEnds:
    """As many processes as the settings say, which share the sockets that clients connect to."""

    _keepers: list[asyncio.Task[None]]
    _telling: asyncio.Task[None]

    def __init__(
        self,
        service: Service,
        listeners: Sequence[socket.socket],
        all_aboard: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.service = service
        self.listeners = listeners
        count = service.settings.api_server_count
        with TemporaryFile() as file:
            file.truncate(SLOT_BYTES * count)
            self.crowd = Crowd(file.fileno(), count)
            self.shared = os.dup(file.fileno())
        self.all_aboard = all_aboard  # called when all of them have the model
        self.failed = failed  # called when there is no hope for them
        self.running: dict[int, FrontEnd] = {}
        self.any_came_up = asyncio.Event()
        self._engine: Engine | None = None
        self._draining = asyncio.Event()
        self._open = False  # whether all were aboard once

    @property
    def num_in_flight(self) -> int:
        return sum(front_end.num_in_flight for front_end in self.running.values())

    def start(self) -> None:
        numbers = range(1, self.service.settings.api_server_count + 1)
        for number in numbers:
            self.crowd.set(number, CLOSED)
        self._keepers = [asyncio.create_task(self._keep(number)) for number in numbers]
        self._telling = asyncio.create_task(self._tell_load())

    def ready(self, engine: Engine) -> None:
        self._engine = engine
        for front_end in self.running.values():
            front_end.ready(engine, self.renew)

    async def renew(self) -> None:
        """Have every front-end know what the model says of itself now; whoever is answered next may ask any of them."""
        if self._engine is not None:
            about = as_json(self._engine.about)
            await asyncio.gather(*(front_end.renew(about) for front_end in self.running.values() if front_end.aboard))

    def died(self, error: PoolingError) -> None:
        for front_end in self.running.values():
            front_end.channel.send(Dead(as_fault(error)))

    async def drain(self) -> None:
        """Have everything finished that was begun; return when all processes have ended."""
        self._draining.set()
        for front_end in self.running.values():
            front_end.channel.send(Drain())
        settings = self.service.settings
        patience = settings.shutdown_delay_s + settings.shutdown_timeout_s + MARGIN_S
        await asyncio.wait(self._keepers, timeout=patience)
        for front_end in self.running.values():
            logger.warning("front-end %d did not end in time and is killed", front_end.number)
            front_end.process.kill()
        await asyncio.wait(self._keepers)
        self._telling.cancel()
        os.close(self.shared)

    async def _keep(self, number: int) -> None:
        """One front-end after the other under the same number, until the server stops."""
        pause, num_tries = FIRST_PAUSE_S, 0
        while not self._draining.is_set():
            began, num_tries = time.monotonic(), num_tries + 1
            what = await self._one(number)
            if self._draining.is_set():
                return
            if not self.any_came_up.is_set() and num_tries == NUM_TRIES:
                self.failed(PoolingError(f"front-end processes end before they listen: {what}; their log says why"))
                return
            if time.monotonic() - began > HEALTHY_S:
                pause = FIRST_PAUSE_S
            logger.error("front-end %d %s; another one starts in %.1f s", number, what, pause)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _one(self, number: int) -> str:
        """The life of one front-end; returns how it ended."""
        try:
            front_end = self.running[number] = await self._start(number)
        except OSError as error:  # no room for one more process, for the moment
            return f"could not be started ({error.strerror})"
        await front_end.ended.wait()
        self.crowd.set(number, CLOSED)
        status = await front_end.status()
        del self.running[number]
        self._look_around()
        return f"(process {front_end.process.pid}) has ended by {status}, and {front_end.num_dropped} requests with it"

    async def _start(self, number: int) -> FrontEnd:
        process, end = spawn([self.shared, *(listener.fileno() for listener in self.listeners)])
        front_end = FrontEnd(number, process, self._look_around)
        await front_end.channel.connect(end)
        front_end.channel.send(Welcome(self.service.settings, number, self.service.began, self.service.created))
        if self._engine is not None:
            front_end.ready(self._engine, self.renew)
            if self._open:
                front_end.channel.send(AllAboard())
        if self._draining.is_set():
            front_end.channel.send(Drain())
        return front_end

    def _look_around(self) -> None:
        """A front-end came, or went: when all that are there have the model, they say that they are ready."""
        if any(front_end.came_up for front_end in self.running.values()):
            self.any_came_up.set()
        if self._open or not self.running or not all(front_end.aboard for front_end in self.running.values()):
            return
        self._open = True
        for front_end in self.running.values():
            front_end.channel.send(AllAboard())
        self.all_aboard()

    async def _tell_load(self) -> None:
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            total = self.num_in_flight
            for front_end in self.running.values():
                front_end.tell_load(total - front_end.num_in_flight)


class FrontEnd:
    """One process, and the line to it."""

    def __init__(self, number: int, process: subprocess.Popen[bytes], changed: Callable[[], None]) -> None:
        self.number = number
        self.process = process
        self.channel: Channel[FromFrontEnd] = Channel(FromFrontEnd, self._receive, self._gone)
        self.changed = changed  # called when it has come a step further
        self.came_up = self.aboard = False
        self.ended = asyncio.Event()
        self.num_in_flight = 0
        self.num_dropped = 0
        self.answering: Answering | None = None
        self._told = 0
        self._renewals: dict[int, asyncio.Future[None]] = {}
        self._numbers = itertools.count(1)

    def ready(self, engine: Engine, renew: Callable[[], Awaitable[None]]) -> None:
        self.answering = Answering(engine, self.channel, renew)
        self.channel.send(Ready(as_json(engine.about)))

    async def renew(self, about: bytes) -> None:
        number, noted = next(self._numbers), asyncio.get_running_loop().create_future()
        self._renewals[number] = noted
        self.channel.send(Renewed(number, about))
        await asyncio.wait([noted], timeout=MARGIN_S)  # one that hangs must not keep the others from going on
        self._renewals.pop(number, None)

    def tell_load(self, num_elsewhere: int) -> None:
        if num_elsewhere != self._told:
            self._told = num_elsewhere
            self.channel.send(Elsewhere(num_elsewhere))

    async def status(self) -> str:
        """How it ended. One that hung up without ending is of no use any more."""
        try:
            code = await asyncio.to_thread(self.process.wait, MARGIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = await asyncio.to_thread(self.process.wait)
        return f"status {code}" if code >= 0 else signal.Signals(-code).name

    def _receive(self, message: FromFrontEnd, numbers: bytes | memoryview) -> None:
        if isinstance(message, Listening | Aboard):
            self.came_up |= isinstance(message, Listening)
            self.aboard |= isinstance(message, Aboard)
            self.changed()
            return
        if isinstance(message, Noted):
            if (noted := self._renewals.pop(message.number, None)) is not None:
                noted.set_result(None)
            return
        if isinstance(message, Seen):
            self.num_in_flight = message.num_in_flight
        assert self.answering is not None, "before the model is loaded nobody asks for anything"
        self.answering.receive(message)

    def _gone(self) -> None:
        self.ended.set()
        if self.answering is not None:
            self.num_dropped = len(self.answering.tasks)
            self.answering.abandon()


def spawn(shared: Sequence[int]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A fresh interpreter that shares these open files, and our end of the line to it."""
    here, there = socket.socketpair()
    for end in (here, there):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
    shared = [there.fileno(), *shared]
    # it finds the same modules as this process, and numpy there starts no threads for mathematics that nobody does
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-m", "cenote.api.front_ends.front_end", *map(str, shared)]
    # Ctrl-C reaches every process of a terminal; this one decides what it means, and blocked signals are inherited
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(command, pass_fds=shared, stdin=subprocess.DEVNULL, env=environment)
    except BaseException:
        here.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        there.close()
    here.setblocking(False)
    return process, here
