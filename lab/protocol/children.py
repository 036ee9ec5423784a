"""The processes of the supervisor, started in the simulated machine: all else of `Child` is real."""

from __future__ import annotations

import socket
from abc import abstractmethod
from typing import Any, cast

from cenote.api.supervisor.child import Child, ChildProcess
from cenote.api.supervisor.engine_child import EngineChild
from cenote.api.supervisor.front_end_child import FrontEndChild
from lab.protocol.connection import ORDER_S, End
from lab.protocol.engine_process import EngineProcess
from lab.protocol.front_end import FrontEnd
from lab.protocol.machine import Machine
from lab.protocol.process import Process


class SimulatedChild(Child[Any]):
    """Replaces the sockets, shared memory and descriptors of a process; `machine` is that of the supervisor."""

    process: Any
    _link_at = 0.0  # when the last link arrives

    @abstractmethod
    def spawn_in(self, control: End) -> Process: ...

    @property
    @abstractmethod
    def machine(self) -> Machine: ...

    async def _start(self) -> ChildProcess:
        ours, theirs = self.machine.make_channel()
        process = self.spawn_in(theirs)
        self.process = self.heartbeat = cast("Any", process)
        await self.channel.connect(cast("socket.socket", ours))
        return process

    def add_link(self, link: Any, engine_id: int) -> bool:
        process, machine = self.process, self.machine
        if process is None or process.has_exited:
            link.close()
            return False
        link.give_to(process)
        # they come in order
        self._link_at = max(machine.loop.time() + machine.draw_delay(), self._link_at + ORDER_S)
        machine.loop.call_at(self._link_at, process.run, process.add_link, link, engine_id)
        return True

    def close(self) -> None:
        self.on_device = self.process.read_device()
        self.channel.close()


class SimulatedEngineChild(SimulatedChild, EngineChild):
    _stderr = -1  # it has none

    @property
    def machine(self) -> Machine:
        return cast("Any", self.listener).machine  # type: ignore[no-any-return]

    def spawn_in(self, control: End) -> Process:
        machine = self.machine
        fails, machine.next_start_fails = machine.next_start_fails, ""
        if fails == "spawn":
            raise OSError(11, "no processes are left")
        process = EngineProcess(machine, control, fails_to_load=fails == "load")
        process.on_exit.append(lambda: machine.on_engine_exit(process))
        if fails == "early":
            process.call_later(0.1, process.exit, 1)
        machine.engines.append(process)
        machine.note(
            f"engine {self.engine_id} is started as process {process.pid}{fails and ', which fails: ' + fails}"
        )
        return process


class SimulatedFrontEndChild(SimulatedChild, FrontEndChild):
    @property
    def machine(self) -> Machine:
        return cast("Any", self.manager.supervisor.context).machine  # type: ignore[no-any-return]

    def spawn_in(self, control: End) -> Process:
        front_end = FrontEnd(self.machine, self.manager.shared_fds[2], control)
        self.machine.front_ends[self.front_end_id - 1] = front_end
        self.machine.note(f"{self.label} is started as process {front_end.process.pid}")
        return front_end.process
