"""One front-end process as the supervisor sees it: its channel, links and requests in flight."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cenote.api.wire.channel import Channel
from cenote.api.wire.control_messages import (
    AdminCall,
    EngineReleased,
    FrontEndReady,
    FrontEndStats,
    FrontEndToSupervisor,
    LinkLost,
    Listening,
    OtherFrontEndsLoad,
    PoisonFound,
    ReplayStats,
)
from cenote.api.wire.link_sockets import make_link_sender, send_link
from cenote.api.wire.messages import ArrayBytes, MetricsCall, MetricsResponse
from cenote.utils.spawn import describe_exit, spawn_module

if TYPE_CHECKING:
    from cenote.api.supervisor.front_end_manager import FrontEndManager


EXIT_MARGIN_S = 2.0  # time for a front-end to exit, in addition to the time for its requests


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
        self._tasks: set[asyncio.Task[None]] = set()

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

    def add_link(self, link: socket.socket, engine_id: int) -> None:
        """Pass the front-end's end of a link to an engine to the process."""
        send_link(self._links, link, engine_id)

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
            self.manager.reconnect(self, message.engine_id)
        elif isinstance(message, EngineReleased):
            self.manager.on_released(message.engine_id, self.front_end_id)
        elif isinstance(message, PoisonFound):
            self.manager.forward_poison(message, self)
        elif isinstance(message, ReplayStats):
            self.manager.app_state.metrics.observe_replay(message)
        elif isinstance(message, FrontEndStats):
            self.num_in_flight = message.num_in_flight
            for reply in message.replies:
                self.manager.app_state.metrics.observe_http(*reply)
        else:
            task = asyncio.get_running_loop().create_task(self._answer(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, call: MetricsCall | AdminCall) -> None:
        if isinstance(call, AdminCall):
            self.channel.send(await self.manager.answer_admin(call))
        else:
            self.channel.send(MetricsResponse(call.call_id, await self.manager.collect_metrics()))

    def _on_disconnect(self) -> None:
        self.exited.set()


def spawn_front_end(fds: Sequence[int]) -> subprocess.Popen[bytes]:
    # front-ends do no linear algebra, so numpy needs no threads
    return spawn_module("cenote.api.front_ends.front_end", fds, environment={"OPENBLAS_NUM_THREADS": "1"})
