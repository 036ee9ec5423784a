"""FrontEndChild: one of the front-end processes, which serve HTTP."""

from __future__ import annotations

import logging
import socket
import subprocess
from collections.abc import Awaitable, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, Protocol

from cenote.api.server_context import ServerContext
from cenote.api.supervisor.child import EXIT_MARGIN_S, Child, ChildProcess
from cenote.api.supervisor.restart_policy import RestartPolicy
from cenote.api.wire.codec_errors import deserialize_error
from cenote.api.wire.control_messages import (
    Drain,
    FrontEndReady,
    FrontEndStats,
    FrontEndToSupervisor,
    LinkLost,
    Listening,
    LoadFailed,
    OtherFrontEndsLoad,
    PoisonFound,
    ReplayStats,
)
from cenote.api.wire.heartbeat import Beat
from cenote.api.wire.messages import ArrayBytes, Message
from cenote.errors import PoolingError
from cenote.utils.spawn import spawn_module

logger = logging.getLogger("cenote")

MAX_RESTART_DELAY_S = 10.0
MAX_START_FAILURES = 3  # of front-ends that exit while none has ever listened
# before a front-end listens: importing its modules may take long when the cores are busy
STARTING_TIMEOUT_S = 60.0
# Longer than that of an engine, whose requests are sent again: those of a front-end are lost with it, while one that
# only got no time on a busy machine answers them late.
SILENCE_TIMEOUT_S = 15.0


class FrontEndMetrics(Protocol):
    def observe_http(self, handler: str, method: str, status: int, seconds: float, /) -> None: ...

    def observe_replay(self, stats: ReplayStats, /) -> None: ...


class FrontEndSupervisor(Protocol):
    """The server, as its front-ends see it."""

    @property
    def context(self) -> ServerContext: ...

    @property
    def metrics(self) -> FrontEndMetrics: ...

    def add_engine_link(self, engine_id: int, link: socket.socket, /) -> None: ...

    async def answer(self, call: Any, /) -> Message: ...

    def on_all_ready(self) -> None: ...

    def on_failed(self, error: BaseException, /) -> None: ...


class FrontEndOwner(Protocol):
    """What the front-ends of a server share."""

    shared_fds: list[int]
    any_listening: bool
    has_announced_ready: bool

    @property
    def supervisor(self) -> FrontEndSupervisor: ...

    def introduce(self, front_end: FrontEndChild, /) -> None: ...

    def check_all_ready(self) -> None: ...

    def reconnect(self, front_end: FrontEndChild, engine_id: int, /) -> None: ...

    def forward_poison(self, found: PoisonFound, source: FrontEndChild, /) -> None: ...

    def on_exited(self, front_end: FrontEndChild, /) -> None: ...


class FrontEndChild(Child[FrontEndToSupervisor]):
    message_type: ClassVar = FrontEndToSupervisor
    load_failure = "cannot serve"

    def __init__(self, front_end_id: int, manager: FrontEndOwner) -> None:
        self.front_end_id = front_end_id
        self.label = f"front-end {front_end_id}"
        self.manager = manager
        settings = manager.supervisor.context.settings
        self.stop_timeout_s = settings.shutdown_delay_s + settings.shutdown_timeout_s + EXIT_MARGIN_S
        super().__init__(RestartPolicy(MAX_START_FAILURES, MAX_RESTART_DELAY_S))

    def reset(self) -> None:
        super().reset()
        self.is_settled = False  # it can serve every model that it needs
        self.num_in_flight = 0
        self.lost_links: set[int] = set()  # ids of engines that it has to be connected with once they are ready
        self._sent_load = 0

    async def spawn(self, fds: Sequence[int], on_error: ExitStack, of_child: ExitStack) -> ChildProcess:
        return spawn_front_end([*fds, *self.manager.shared_fds])

    def introduce(self) -> None:
        self.manager.introduce(self)

    def on_message(self, message: FrontEndToSupervisor) -> None:
        if isinstance(message, Listening | FrontEndReady):
            self.is_ready = self.has_been_ready = True
            self.is_settled |= isinstance(message, FrontEndReady)
            self.manager.check_all_ready()
        elif isinstance(message, LinkLost):
            self.manager.reconnect(self, message.engine_id)
        elif isinstance(message, PoisonFound):
            self.manager.forward_poison(message, self)
        elif isinstance(message, LoadFailed):
            self.load_error, self.is_ready = deserialize_error(message.error), False
        elif isinstance(message, ReplayStats):
            self.manager.supervisor.metrics.observe_replay(message)
        else:
            assert isinstance(message, FrontEndStats), "all others are calls and replies"
            self.num_in_flight = message.num_in_flight
            for reply in message.replies:
                self.manager.supervisor.metrics.observe_http(*reply)

    def answer(self, call: Any, array_bytes: ArrayBytes) -> Awaitable[Message]:
        return self.manager.supervisor.answer(call)

    def find_hang(self, beat: Beat) -> str | None:
        """The others would leave connections to it for ever."""
        hang = beat.describe_hang(SILENCE_TIMEOUT_S if self.is_ready else STARTING_TIMEOUT_S)
        return None if hang is None else f"{hang} and was killed"

    def make_stop_message(self) -> Message:
        return Drain()

    def on_exited(self, reason: str, code: int) -> None:
        self.manager.on_exited(self)

    def find_final_error(self, reason: str) -> Exception | None:
        if self.load_error is not None and not self.manager.has_announced_ready:
            return self.load_error
        if self.policy.is_crash_loop and not self.manager.any_listening:
            return PoolingError(f"front-end processes exit before they listen: {reason}; see their log")
        return None

    def on_given_up(self, error: Exception) -> None:
        self.manager.supervisor.on_failed(error)

    def on_restart(self, reason: str, code: int) -> None:
        process = f"(process {self.pid}) " if self.pid else ""
        lost = f"; {self.num_in_flight} requests were lost" if self.pid else ""
        logger.error("%s %s%s%s; restarting in %.1f s", self.label, process, reason, lost, self.policy.delay_s)

    def send_load(self, num_in_flight_elsewhere: int) -> None:
        if num_in_flight_elsewhere != self._sent_load:
            self._sent_load = num_in_flight_elsewhere
            self.channel.send(OtherFrontEndsLoad(num_in_flight_elsewhere))


def spawn_front_end(fds: Sequence[int]) -> subprocess.Popen[bytes]:
    # front-ends do no linear algebra, so numpy needs no threads
    return spawn_module("cenote.api.front_ends.front_end", fds, environment={"OPENBLAS_NUM_THREADS": "1"})
