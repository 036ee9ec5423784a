"""Server processes: started by a test, or shared by many tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.suite import first_of
from tests.tiny import tiny_bert

from .server_process import ServerProcess

StartServer = Callable[..., ServerProcess]

ARRANGEMENTS = {
    "supervised": (),
    "in-process": ("--in-process-engine",),
}
# modules whose tests always run in both arrangements; SERVER_ARRANGEMENTS="supervised in-process" runs all in both
IN_BOTH = ("tests.serving.test_startup", "tests.serving.test_sockets", "tests.serving.test_deterministic")


# modules about starts, processes and their imports: their servers start as users start them
STARTED_BY_USERS = (
    *("test_startup", "test_startup_time", "test_torch_import"),
    *("test_engine_launcher", "test_supervisor", "test_front_ends"),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    names: list[Any] = os.environ.get("SERVER_ARRANGEMENTS", "supervised").split()
    if metafunc.module.__name__ in IN_BOTH:
        names = first_of(["supervised", "in-process"])
    own = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    for fixture in ("start_server", "shared_server"):
        if fixture in metafunc.fixturenames and fixture not in own:
            scope = "package" if fixture == "shared_server" else None
            metafunc.parametrize(fixture, names, indirect=True, scope=scope)


@pytest.fixture(scope="module", autouse=True)
def way_to_start(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        if request.module.__name__.rpartition(".")[2] in STARTED_BY_USERS:
            monkeypatch.setattr(ServerProcess, "is_forked", False)
        yield


@pytest.fixture
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


@pytest.fixture(scope="package")
def shared_server(default_folder: Path, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    server = ServerProcess(*ARRANGEMENTS[request.param]).wait_until_ready()
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_bert(folder)
    return folder


@pytest.fixture(scope="module")
def get_server(folder: Path) -> Iterator[StartServer]:
    servers: list[ServerProcess] = []

    def get() -> ServerProcess:
        if not servers or servers[-1].process.poll() is not None:
            servers.append(ServerProcess(str(folder), "--dtype", "float32").wait_until_ready())
        return servers[-1]

    yield get
    if servers and servers[-1].process.poll() is None:
        assert servers[-1].stop() == 0


@pytest.fixture
def server(get_server: StartServer) -> ServerProcess:
    """A server with the tiny model: the one of the tests before if it runs."""
    return get_server()
