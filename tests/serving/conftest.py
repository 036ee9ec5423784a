"""Servers that a test starts, and one that many tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .server_process import Served

Start = Callable[..., Served]


@pytest.fixture
def start(default_folder: Path) -> Iterator[Start]:
    """Starts `cenote serve` with the default model; whatever still runs at the end is stopped."""
    running: list[Served] = []

    def start(*flags: str, **environment: str) -> Served:
        running.append(Served(*flags, **environment))
        return running[-1]

    yield start
    for served in running:
        served.process.kill()
        served.wait()


@pytest.fixture(scope="session")
def served(default_folder: Path) -> Iterator[Served]:
    found = Served().ready()
    yield found
    assert found.stop() == 0
