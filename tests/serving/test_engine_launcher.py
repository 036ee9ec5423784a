"""Engine processes after the first one are forks of the engine launcher, which may fail as well."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from .server_process import ServerProcess, children, command_line, is_alive, wait_until

LAUNCHER = "cenote.api.engine_launcher"


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(str(folder), "--dtype", "float32").wait_until_ready()
    yield server
    assert server.stop() == 0


def embed(server: ServerProcess) -> list[float]:
    with server.client() as client:
        reply: httpx.Response = client.post("/v1/embeddings", json={"input": "the cat is in the city"})
    assert reply.status_code == 200, reply.text
    return list(reply.json()["data"][0]["embedding"])


def kill_engine(server: ServerProcess) -> int:
    """Kill the engine process, wait for the next one and return its id."""
    killed = server.engine
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: server.engine not in (None, killed))
    embed(server)
    assert server.engine is not None
    return server.engine


def find_launcher(server: ServerProcess) -> int | None:
    return next((pid for pid in children(server.process.pid) if LAUNCHER in command_line(pid)), None)


def list_engine_processes(server: ServerProcess) -> list[int]:
    return [pid for pid in children(server.process.pid) if pid not in server.front_ends()]


def get_launcher(server: ServerProcess) -> int:
    """Return the id of the launcher; a server has none before its first engine process is replaced."""
    if find_launcher(server) is None:
        kill_engine(server)
    pid = find_launcher(server)
    assert pid is not None, server.output
    return pid


@pytest.mark.slow  # the first test of this server
def test_a_server_whose_engine_runs_has_no_launcher(server: ServerProcess) -> None:
    assert find_launcher(server) is None
    assert list_engine_processes(server) == [server.engine]


@pytest.mark.slow
def test_a_forked_engine_is_a_child_of_the_supervisor_and_gives_the_same_vectors(server: ServerProcess) -> None:
    expected = embed(server)
    launcher = get_launcher(server)
    for _ in range(3):
        engine = kill_engine(server)
        assert sorted(list_engine_processes(server)) == sorted([launcher, engine])
        assert embed(server) == expected
    assert "the engine launcher failed" not in server.output


@pytest.mark.slow
def test_the_last_words_of_a_forked_engine_are_logged(server: ServerProcess) -> None:
    get_launcher(server)
    engine = server.engine
    assert engine is not None
    os.kill(engine, signal.SIGSEGV)

    assert "last line:" in server.wait_for_line(f"the engine process {engine} has ended: exited with SIGSEGV")
    assert "Fatal Python error: Segmentation fault" in server.output
    embed(server)


@pytest.mark.slow
def test_a_launcher_that_was_killed_is_started_again(server: ServerProcess) -> None:
    killed = get_launcher(server)
    os.kill(killed, signal.SIGKILL)
    embed(server)  # the engine does not need it

    kill_engine(server)
    assert find_launcher(server) not in (None, killed)


@pytest.mark.slow
def test_an_engine_is_started_without_a_launcher_that_does_not_reply(server: ServerProcess) -> None:
    stopped = get_launcher(server)
    os.kill(stopped, signal.SIGSTOP)

    engine = kill_engine(server)
    server.wait_for_line("the engine launcher failed .no reply within 5 s.: engine processes start without it")
    wait_until(lambda: not is_alive(stopped))
    assert list_engine_processes(server) == [engine]
    assert find_launcher(server) is None  # it is not tried again for some minutes


@pytest.mark.slow
def test_engines_are_replaced_if_the_parent_of_the_server_ignores_the_exit_of_its_children(folder: Path) -> None:
    ignoring = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # inherited by the server
    try:
        server = ServerProcess(str(folder), "--dtype", "float32")
    finally:
        signal.signal(signal.SIGCHLD, ignoring)
    server.wait_until_ready()
    try:
        kill_engine(server)
        kill_engine(server)  # a forked one
        assert server.output.count("exited with SIGKILL; starting another now") == 2
    finally:
        assert server.stop() == 0


@pytest.mark.slow
def test_a_server_that_stops_while_the_launcher_starts_leaves_nothing(folder: Path) -> None:
    server = ServerProcess(str(folder), "--dtype", "float32").wait_until_ready()
    engine = server.engine
    assert engine is not None
    os.kill(engine, signal.SIGKILL)
    wait_until(lambda: find_launcher(server) is not None)
    processes = children(server.process.pid)

    assert server.stop() == 0
    assert not any(map(is_alive, processes))


@pytest.mark.slow
def test_launcher_and_engine_exit_when_the_supervisor_is_killed(folder: Path) -> None:
    server = ServerProcess(str(folder), "--dtype", "float32").wait_until_ready()
    get_launcher(server)
    processes = children(server.process.pid)
    assert len(list_engine_processes(server)) == 2

    server.process.kill()
    wait_until(lambda: not any(map(is_alive, processes)))
    assert server.wait() == -signal.SIGKILL
