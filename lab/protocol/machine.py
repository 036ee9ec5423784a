"""The simulated machine: its time, processes and connections, and a server whose supervisor is the real one."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
from collections import Counter
from functools import lru_cache
from random import Random
from typing import Any, cast

from cenote.api.supervisor.supervisor import Supervisor
from cenote.api.wire.control_messages import ExitCause
from cenote.config.engine import EngineConfig
from cenote.config.model_table import ModelTable
from cenote.config.server import ServerConfig
from lab.protocol.connection import End, make_connection
from lab.protocol.device import CRASHES, Batch, Tokens
from lab.protocol.engine_process import STEP_TIMEOUT_S, EngineProcess
from lab.protocol.front_end import FrontEnd
from lab.protocol.virtual_loop import VirtualLoop


class Machine:
    def __init__(self, loop: VirtualLoop, random: Random, *, is_traced: bool = False) -> None:
        self.loop = loop
        self.random = random
        self.is_traced = is_traced
        self.num_replicas = random.choice((1, 1, 2, 2, 3))
        self.num_front_ends = random.choice((1, 1, 2))
        self.max_delay_s = random.choice((0.0005, 0.002, 0.01, 0.1))  # of a message on a link
        self.max_channel_delay_s = random.choice((self.max_delay_s, self.max_delay_s, 0.5))  # of one of the supervisor
        self.engines: list[EngineProcess] = []  # all that were started
        self.front_ends: list[FrontEnd | None] = [None] * self.num_front_ends  # the last of each number
        self.process_ids = itertools.count(1)
        self.links: list[End] = []  # one end of each connection of a front-end with an engine
        self.channels: list[End] = []  # those of front-ends to the supervisor
        self.next_start_fails = ""  # how, of an engine process: "spawn", "load" or "early"
        self.exits_alone: Counter[tuple[Tokens, ExitCause]] = Counter()  # of processes with this input alone
        self.ready_at = math.inf  # when all front-ends were
        self.accepted: set[Tokens] = set()  # inputs that an engine process had
        self.suspects: set[Tokens] = set()  # inputs that were on the device when an engine process exited
        self.num_failures = 0  # of engine processes themselves
        self.defects: list[str] = []
        self.changes: list[asyncio.Task[None]] = []  # of the model, by an admin
        self.faults: Counter[str] = Counter()

    def start(self) -> None:
        settings, table = make_settings(self.num_front_ends), make_table(self.num_replicas)
        self.supervisor = SimulatedSupervisor(settings, [], table, None)
        self.supervisor.machine = self
        cast("Any", self.supervisor.models).machine = cast("Any", self.supervisor.context).machine = self
        self.supervisor.models.start()
        for child in self.supervisor.front_ends.front_ends:
            child.start()

    def close(self) -> None:
        for fd in self.supervisor.front_ends.shared_fds:
            os.close(fd)

    def make_channel(self) -> tuple[End, End]:
        """Connect the supervisor with a process."""
        return make_connection(self.loop, lambda: self.random.random() * self.max_channel_delay_s)

    def make_link(self) -> tuple[Any, Any]:
        """Take the place of the function of this name that makes sockets."""
        ends = make_connection(self.loop, self.draw_delay)
        self.links.append(ends[0])
        return ends

    def draw_delay(self) -> float:
        return self.random.random() * self.max_delay_s

    def list_living(self) -> list[EngineProcess]:
        return [engine for engine in self.engines if not engine.has_exited]

    def on_engine_exit(self, process: EngineProcess) -> None:
        """Record what a process had alone on its device: who is to blame is judged by it."""
        cause: ExitCause = "crash"
        if process.is_killed_by_supervisor or process.has_stopped:
            cause = "hang"
        elif process.code in (-9, -15):
            cause = "external"
        device = process.device
        on_device = [item for batch in device.running for item in batch.items]
        # over a link that a front-end has replaced, it has sent what it will not recognize in the report
        self.suspects.update(item.tokens for item in on_device if not item.link.end.peer.is_closing())
        if (alone := device.alone) is not None:
            self.exits_alone[alone, cause] += 1
        self.num_failures += cause != "external"
        self.note(f"process {process.pid} exits with {process.code}; {process.read_device()}")

    def check_batch(self, batch: Batch) -> None:
        """Check that what was on the device when a process exited runs alone."""
        for item in batch.items:
            is_suspect = item.tokens[0] < CRASHES and item.tokens in self.suspects
            if is_suspect and not batch.is_isolated:
                self.report(f"{item.tokens} was on the device when a process exited, and runs with others")

    def note(self, text: str) -> None:
        if self.is_traced:
            print(f"{self.loop.time() - 1000:10.4f}  {text}")

    def report(self, defect: str) -> None:
        self.defects.append(defect)
        self.note(f"DEFECT: {defect}")


class SimulatedSupervisor(Supervisor):
    machine: Machine

    def on_all_ready(self) -> None:
        self.machine.ready_at = self.machine.loop.time()

    def on_failed(self, error: BaseException) -> None:
        self.machine.report(f"the server ends: {error}")


@lru_cache
def make_settings(num_front_ends: int) -> ServerConfig:
    return ServerConfig(api_server_count=num_front_ends)


@lru_cache
def make_table(num_replicas: int) -> ModelTable:
    config = EngineConfig(device="cpu", data_parallel_size=num_replicas, step_timeout_s=STEP_TIMEOUT_S)
    return ModelTable.of(config, ("simulated",))
