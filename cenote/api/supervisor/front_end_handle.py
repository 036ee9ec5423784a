"""One front-end process as the supervisor sees it: its channel, links and requests in flight."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from cenote.api.wire.channel import Channel
from cenote.api.wire.codec_errors import decode_error
from cenote.api.wire.control_messages import (
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
from cenote.api.wire.heartbeat import HeartbeatReader, make_heartbeat_file
from cenote.api.wire.link_sockets import make_link_sender, send_link
from cenote.api.wire.messages import ArrayBytes
from cenote.utils.spawn import describe_exit, spawn_module

if TYPE_CHECKING:
    from cenote.api.supervisor.front_end_manager import FrontEndManager
logger = logging.getLogger("cenote")

EXIT_MARGIN_S = 2.0  # time for a front-end to exit, in addition to the time for its requests


class FrontEndHandle:
    """One front-end process and the channel to it."""

    def __init__(self, front_end_id: int, manager: FrontEndManager) -> None:
        self.front_end_id = front_end_id
        self.manager = manager
        self.channel: Channel[FrontEndToSupervisor] = Channel(
            FrontEndToSupervisor, self._on_message, self._on_disconnect, on_call=lambda call, _: manager.answer(call)
        )
        self.is_listening = self.is_ready = False
        self.exited = asyncio.Event()
        self.load_error: Exception | None = None  # why it cannot serve
        self.kill_reason: str | None = None  # why the supervisor killed it
        self.num_in_flight = 0
        self.lost_links: set[int] = set()  # ids of engines that it has to be connected with once they are ready
        self._sent_load = 0

    async def start(self, fds: Sequence[int]) -> None:
        """Start the process, which inherits these file descriptors."""
        # a start that fails is repeated for ever, so that it must leave nothing open
        with ExitStack() as on_error, ExitStack() as of_child:
            sock, child_sock = socket.socketpair()
            self._links, child_links = make_link_sender()
            for item in (sock, self._links):
                on_error.enter_context(item)
            for item in (child_sock, child_links):
                of_child.enter_context(item)
            of_child.callback(os.close, heartbeat_fd := make_heartbeat_file())
            self.heartbeat = HeartbeatReader(heartbeat_fd)
            on_error.callback(self.heartbeat.close)
            self.process = spawn_front_end([child_sock.fileno(), child_links.fileno(), heartbeat_fd, *fds])
            on_error.pop_all()
        sock.setblocking(False)
        await self.channel.connect(sock)

    def add_link(self, link: socket.socket, engine_id: int) -> bool:
        """Pass the front-end's end of a link to an engine to the process; return whether that was possible."""
        return send_link(self._links, link, engine_id)

    def kill(self, reason: str) -> None:
        """End the process at once; `reason`: what it did, for the log."""
        self.kill_reason = self.kill_reason or reason
        self.process.kill()

    def send_load(self, num_in_flight_elsewhere: int) -> None:
        if num_in_flight_elsewhere != self._sent_load:
            self._sent_load = num_in_flight_elsewhere
            self.channel.send(OtherFrontEndsLoad(num_in_flight_elsewhere))

    async def wait_exit(self) -> str:
        """Return how the process has ended, for the log; kill one that closed its channel but does not exit."""
        try:
            code = await self.manager.exit_waits.run_admitted(self.process.wait, EXIT_MARGIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = await self.manager.exit_waits.run_admitted(self.process.wait)
        self._links.close()
        self.heartbeat.close()
        return self.kill_reason or f"exited with {describe_exit(code)}"

    def _on_message(self, message: FrontEndToSupervisor, array_bytes: ArrayBytes) -> None:
        if isinstance(message, Listening | FrontEndReady):
            self.is_listening |= isinstance(message, Listening)
            self.is_ready |= isinstance(message, FrontEndReady)
            self.manager.check_all_ready()
        elif isinstance(message, LinkLost):
            self.manager.reconnect(self, message.engine_id)
        elif isinstance(message, PoisonFound):
            self.manager.forward_poison(message, self)
        elif isinstance(message, LoadFailed):
            self.load_error = decode_error(message.error)
        elif isinstance(message, ReplayStats):
            self.manager.metrics.observe_replay(message)
        else:
            assert isinstance(message, FrontEndStats), "all others are calls and replies"
            self.num_in_flight = message.num_in_flight
            for reply in message.replies:
                self.manager.metrics.observe_http(*reply)

    def _on_disconnect(self) -> None:
        self.exited.set()


def spawn_front_end(fds: Sequence[int]) -> subprocess.Popen[bytes]:
    # front-ends do no linear algebra, so numpy needs no threads
    return spawn_module("cenote.api.front_ends.front_end", fds, environment={"OPENBLAS_NUM_THREADS": "1"})
