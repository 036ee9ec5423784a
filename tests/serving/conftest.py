"""Servers that a test starts, and one that many tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .server_process import ServerProcess

Start = Callable[..., ServerProcess]


@pytest.fixture
def start(default_folder: Path) -> Iterator[Start]:
    """Starts `cenote serve` with the default model; whatever still runs at the end is stopped."""
    running: list[ServerProcess] = []

    def start(*flags: str, **environment: str) -> ServerProcess:
        running.append(ServerProcess(*flags, **environment))
        return running[-1]

    yield start
    for served in running:
        served.process.kill()
        served.wait()


@pytest.fixture(scope="session")
def served(default_folder: Path) -> Iterator[ServerProcess]:
    found = ServerProcess().wait_until_ready()
    yield found
    assert found.stop() == 0
