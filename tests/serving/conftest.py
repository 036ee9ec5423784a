"""Server processes: started by a test, or shared by many tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .server_process import ServerProcess

StartServer = Callable[..., ServerProcess]


ARRANGEMENTS = {"supervised": (), "in-process": ("--in-process-engine",)}


@pytest.fixture(params=ARRANGEMENTS)
def start_server(default_folder: Path, request: pytest.FixtureRequest) -> Iterator[StartServer]:
    """Start `cenote serve` with the default model; processes that still run at the end are killed."""
    running: list[ServerProcess] = []

    def start(*flags: str, **environment: str) -> ServerProcess:
        extra_flags = () if "--api-server-count" in flags else ARRANGEMENTS[request.param]
        running.append(ServerProcess(*flags, *extra_flags, **environment))
        return running[-1]

    yield start
    for server in running:
        server.process.kill()
        server.wait()


@pytest.fixture(scope="session", params=ARRANGEMENTS)
def shared_server(default_folder: Path, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    server = ServerProcess(*ARRANGEMENTS[request.param]).wait_until_ready()
    yield server
    assert server.stop() == 0
