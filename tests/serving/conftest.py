"""Server processes: started by a test, or shared by many tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .server_process import ServerProcess

StartServer = Callable[..., ServerProcess]


@pytest.fixture
def start_server(default_folder: Path) -> Iterator[StartServer]:
    """Start `cenote serve` with the default model; processes that still run at the end are killed."""
    running: list[ServerProcess] = []

    def start(*flags: str, **environment: str) -> ServerProcess:
        running.append(ServerProcess(*flags, **environment))
        return running[-1]

    yield start
    for server in running:
        server.process.kill()
        server.wait()


@pytest.fixture(scope="session")
def shared_server(default_folder: Path) -> Iterator[ServerProcess]:
    server = ServerProcess().wait_until_ready()
    yield server
    assert server.stop() == 0
