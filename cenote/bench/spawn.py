"""Server process that is started for the duration of a benchmark."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cenote.bench.process_group import ProcessGroup
from cenote.errors import LoadError
from cenote.utils.async_http_client import AsyncHttpClient, NoResponse, ServerAddress, encode_http_request

READY_TIMEOUT_S = 300.0
MAX_LOG_LINES = 5


@dataclass(frozen=True, slots=True)
class SpawnedServer:
    address: ServerAddress
    ready_s: float  # from process start until /health returns 200
    group: ProcessGroup


def make_serve_command(port: int, *, model: str | None, dtype: str, extra_args: Sequence[str]) -> list[str]:
    model_args = [model] if model is not None else []
    listen_args = ["--host", "127.0.0.1", "--port", str(port), "--dtype", dtype]
    return [sys.executable, "-m", "cenote", "serve", *model_args, *listen_args, *extra_args]


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def spawn_server(
    command: Sequence[str], port: int, runner: asyncio.Runner, environment: Mapping[str, str] | None = None
) -> Iterator[SpawnedServer]:
    """Start a server, wait until it is healthy, and terminate it on exit."""
    address = ServerAddress("127.0.0.1", port)
    with tempfile.TemporaryFile() as log:
        began = time.perf_counter()
        group = ProcessGroup(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, environment=environment
        )
        try:
            problem = runner.run(wait_until_healthy(group.process, address))
            if problem is not None:
                log.seek(0)
                log_tail = " / ".join(log.read().decode(errors="replace").strip().splitlines()[-MAX_LOG_LINES:])
                raise LoadError(f"{' '.join(command[1:])} {problem}; last log lines: {log_tail or 'none'}")
            yield SpawnedServer(address, time.perf_counter() - began, group)
        finally:
            group.terminate()


async def wait_until_healthy(process: subprocess.Popen[bytes], address: ServerAddress) -> str | None:
    """Poll /health; return None when the server is healthy, else the reason for the failure."""
    began = time.perf_counter()
    async with AsyncHttpClient(address, timeout_s=5) as client:
        while time.perf_counter() - began < READY_TIMEOUT_S:
            if process.poll() is not None:
                return f"exited with status {process.returncode}"
            try:
                if (await client.send(encode_http_request("GET", address, "/health"))).status == 200:
                    return None
            except NoResponse:
                pass
            await asyncio.sleep(0.05)
    return f"was not ready after {READY_TIMEOUT_S:g} s"
