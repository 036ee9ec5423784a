"""A server whose model the native runtime computes never imports torch, though it is installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from .conftest import ARRANGEMENTS, StartServer
from .server_process import children


def find_processes(pid: int) -> list[int]:
    """Return the ids of a process and of all that it has started."""
    return [pid, *(each for child in children(pid) for each in find_processes(child))]


def maps_torch(pid: int) -> bool:
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.parametrize("start_server", list(ARRANGEMENTS), indirect=True)
def test_no_process_of_a_server_loads_torch_before_or_after_the_first_answer(start_server: StartServer) -> None:
    assert find_spec("torch") is not None
    server = start_server("--device", "cpu").wait_until_ready()

    with server.client() as client:
        response = client.post("/v1/embeddings", json={"input": "hello"})
        loaded = [pid for pid in find_processes(server.process.pid) if maps_torch(pid)]

    assert len(response.json()["data"][0]["embedding"]) == 384
    assert loaded == []


def test_a_server_with_the_torch_runtime_loads_it_in_the_engine_process(start_server: StartServer) -> None:
    server = start_server("--device", "cpu", "--runtime", "torch").wait_until_ready()

    assert [pid for pid in find_processes(server.process.pid) if maps_torch(pid)] == server.engines
