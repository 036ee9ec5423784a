"""Time from the command to the first responses. Runs alone: beside other tests it would measure them too."""

from __future__ import annotations

import time

import pytest

from .conftest import ARRANGEMENTS, StartServer
from .server_process import ServerProcess


def measure_startup(server: ServerProcess) -> tuple[float, float]:
    """Return the seconds from the start to the first response and to the first embedding."""
    with server.client() as client:
        health = client.get("/health")
        first_response_s = server.startup_s
        live = client.get("/health/live")
        early = client.post("/v1/embeddings", json={"input": "too early"})
        while client.get("/health/ready").status_code != 200:
            time.sleep(0.01)
        response = client.post("/v1/embeddings", json={"input": "hello"})
        first_embedding_s = server.startup_s

    assert (health.status_code, health.json()["state"]) == (503, "loading")
    assert (live.status_code, live.json()["state"]) == (200, "loading")
    assert early.status_code == 503 and early.headers["retry-after"] == "1"
    assert len(response.json()["data"][0]["embedding"]) == 384
    return first_response_s, first_embedding_s


@pytest.mark.parametrize("start_server", list(ARRANGEMENTS), indirect=True)
def test_health_responds_within_a_second_and_the_first_request_within_five(start_server: StartServer) -> None:
    times: list[tuple[float, float]] = []
    # other processes may use the cores; a server that is slow by itself is slow every time
    while len(times) < 3 and not any(first < 1.0 and embedding < 5.0 for first, embedding in times):
        server = start_server()
        times.append(measure_startup(server))
        server.stop()

    assert any(first < 1.0 and embedding < 5.0 for first, embedding in times), times
