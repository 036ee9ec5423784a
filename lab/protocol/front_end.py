"""A simulated front-end process: the real one without HTTP, whose clients are tasks."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

from cenote.api.admission.counters import Counters
from cenote.api.app_state import AppState
from cenote.api.front_ends.front_end import FrontEndProcess
from cenote.api.front_ends.remote_engines import RemoteEngines
from cenote.api.wire.control_messages import Init, Listening
from lab.protocol.connection import End
from lab.protocol.host import Host
from lab.protocol.process import Process


class FrontEndOfMachine(Process):
    front_end: FrontEnd

    def add_link(self, link: End, engine_id: int) -> None:
        self.front_end.add_link(link, engine_id)


class FrontEnd(FrontEndProcess):
    def __init__(self, machine: Host, counters_fd: int, control: End) -> None:
        super().__init__(-1, counters_fd, [], cast("Any", None))
        self.process = FrontEndOfMachine(machine.loop, next(machine.process_ids), machine.random.uniform(0.01, 0.05))
        self.process.front_end = self
        self.clients: set[asyncio.Task[None]] = set()
        control.give_to(self.process)
        self.process.last_read_at = lambda: control.peer.last_at
        machine.channels.append(control)
        start_s = machine.random.uniform(0.01, 0.1)
        self.process.call_later(start_s, self._connect, control)

    def _connect(self, control: End) -> None:
        self.start(self.channel.connect(cast("Any", control)))

    @property
    def app_state(self) -> AppState:
        return self.server.app_state

    @property
    def is_usable(self) -> bool:
        """Whether clients can connect: it knows the models by then, as it is told while it imports its modules."""
        return not self.process.has_exited and self.initialized.is_set() and bool(self.app_state.models.first.name)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that ends with the process."""
        task = self.process.loop.create_task(work)
        self.clients.add(task)
        task.add_done_callback(self.clients.discard)
        return task

    def add_link(self, link: End, engine_id: int) -> None:
        self.call_engines(lambda engines: engines.add_link(cast("Any", link), engine_id))

    def kill(self) -> None:
        """As SIGKILL of somebody else."""
        for task in list(self.clients):
            task.cancel()
        self.process.exit(-signal.SIGKILL)

    def _initialize(self, init: Init) -> None:
        counters = Counters(self.admission_fd, init.settings.api_server_count, init.front_end_id - 1)
        app_state = AppState(init.settings, counters)
        app_state.metrics, app_state.admin = self.metrics, self.admin
        self.server = cast("Any", SimpleNamespace(app_state=app_state))
        self.engines = RemoteEngines(app_state, self)
        for call in self._waiting_calls:  # links that were there before
            call(self.engines)
        self.channel.send(Listening())
        self.initialized.set()

    def _on_disconnect(self) -> None:
        self.kill()
