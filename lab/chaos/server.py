"""A real `cenote serve`, its processes, and what they leave behind."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from cenote.bench.process_group import ProcessGroup
from cenote.bench.spawn import MAX_LOG_LINES, find_free_port, wait_until_healthy
from cenote.errors import LoadError
from cenote.utils.async_http_client import AsyncHttpClient, NoResponse, ServerAddress, encode_http_request
from cenote.utils.bounded_executor import BoundedExecutor
from lab.chaos.processes import (
    ProcessSize,
    find_engine,
    find_front_ends,
    find_group,
    find_launchers,
    read_shared_size,
    read_size,
)

STOP_TIMEOUT_S = 60.0
ORPHAN_TIMEOUT_S = 3.0  # children notice the end of the supervisor within this time
POLL_S = 0.02
METRICS_TIMEOUT_S = 10.0
THREADS = BoundedExecutor("chaos", num_threads=4, max_waiting=64)  # for calls that block


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How the server under test is started."""

    model: str | None = None
    front_ends: int = 1
    serve_args: Sequence[str] = ()
    api_keys: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    has_grpc: bool = False

    def make_command(self, port: int, grpc_port: int | None) -> list[str]:
        keys = [word for key in self.api_keys for word in ("--api-key", key)]
        return [
            *(sys.executable, "-m", "cenote", "serve", *([self.model] if self.model else [])),
            *("--host", "127.0.0.1", "--port", str(port), "--api-server-count", str(self.front_ends)),
            *("--disable-access-log", *keys, *self.serve_args),
            *(() if grpc_port is None else ("--grpc-port", str(grpc_port))),
        ]


@dataclass(frozen=True, slots=True)
class StopReport:
    status: int | None  # None: it had to be killed
    seconds: float
    orphans: list[int]  # processes that were left


class ChaosServer:
    def __init__(self, options: ServerOptions, log: Path) -> None:
        self.options = options
        self.log = log
        port = find_free_port()
        self.address = ServerAddress("127.0.0.1", port)
        self.grpc_port = find_free_port() if options.has_grpc else None
        self.command = options.make_command(port, self.grpc_port)
        with log.open("ab") as file:
            self.group = ProcessGroup(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                environment=options.environment,
            )

    @property
    def pid(self) -> int:
        """The supervisor, which leads the process group."""
        return self.group.process.pid

    @property
    def auth_headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.options.api_keys[0]}"} if self.options.api_keys else {}

    @property
    def engine(self) -> int | None:
        return find_engine(self.pid)

    @property
    def front_ends(self) -> list[int]:
        return find_front_ends(self.pid)

    async def wait_until_ready(self) -> None:
        problem = await wait_until_healthy(self.group.process, self.address)
        if problem is not None:
            tail = " / ".join(self.log.read_text(errors="replace").splitlines()[-MAX_LOG_LINES:])
            raise LoadError(f"{' '.join(self.command[1:])} {problem}; last log lines: {tail or 'none'}")

    async def wait_for_engine(self, other_than: int | None = None) -> int:
        """Return the engine process, once there is one."""
        while (engine := self.engine) is None or engine == other_than:
            await asyncio.sleep(POLL_S)
        return engine

    def read_sizes(self) -> dict[int, ProcessSize]:
        """Return what each process holds; the launcher, which comes and goes, only what others share with it."""
        sizes, launchers = {}, find_launchers(self.pid)
        for pid in find_group(self.pid):
            with suppress(OSError):  # it has exited
                sizes[pid] = read_shared_size(pid) if pid in launchers else read_size(pid)
        return sizes

    async def read_metrics(self) -> dict[str, float]:
        """Return the sums of all metrics over their labels; empty if the server does not answer."""
        request = encode_http_request("GET", self.address, "/metrics", headers=self.auth_headers)
        totals: dict[str, float] = {}
        with suppress(NoResponse):
            async with AsyncHttpClient(self.address, timeout_s=METRICS_TIMEOUT_S) as client:
                reply = await client.send(request)
            for family in text_string_to_metric_families(reply.content.decode()):
                for sample in family.samples:
                    totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
        return totals

    async def stop(self) -> StopReport:
        """Send SIGTERM, wait for the exit and look for processes that are left."""
        began = time.perf_counter()
        status: int | None = None
        self.group.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            status = await THREADS.run(self.group.process.wait, STOP_TIMEOUT_S)
        seconds = time.perf_counter() - began
        while (orphans := find_group(self.pid)) and time.perf_counter() - began < seconds + ORPHAN_TIMEOUT_S:
            await asyncio.sleep(POLL_S)
        return StopReport(status, seconds, orphans)


@asynccontextmanager
async def start_server(options: ServerOptions, log: Path) -> AsyncIterator[ChaosServer]:
    """Start a server and wait until it is ready; on exit nothing of it is left."""
    server = ChaosServer(options, log)
    try:
        await server.wait_until_ready()
        yield server
    finally:
        await THREADS.run(server.group.terminate)
