"""Requests while engine processes crash, hang or are killed: every one gets its own result or an honest error."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.serving.request_load import Load

from .failing_device import CRASHED, failing_server
from .server_process import ServerProcess, is_alive, read_metrics, wait_until

NUM_KILLS = 3


def count_batches(client: httpx.Client) -> float:
    """Return the batches of the engine process that runs now."""
    return read_metrics(client).get("cenote_batch_sequences_count", 0)


def wait_for_another_engine(server: ServerProcess, previous: int) -> None:
    with server.client() as client:
        wait_until(lambda: server.engine not in (None, previous) and client.get("/health/ready").status_code == 200)


def test_no_request_fails_while_engines_are_killed(server: ServerProcess) -> None:
    with Load(server) as load:
        for _ in range(NUM_KILLS):
            time.sleep(0.3)
            assert (killed := server.engine) is not None
            os.kill(killed, signal.SIGKILL)
            wait_for_another_engine(server, killed)
        num_answered = load.num_answered
        wait_until(lambda: load.num_answered > num_answered + 20)
    assert not load.failures
    with server.client() as client:
        metrics = read_metrics(client)
    assert metrics["cenote_requests_replayed_total"] >= 1
    assert metrics["cenote_poison_inputs_total"] == 0


@pytest.mark.slow
def test_a_large_request_is_answered_when_the_engine_is_killed_in_the_middle(folder: Path) -> None:
    server = ServerProcess(str(folder), "--dtype", "float32", "--max-num-seqs", "1").wait_until_ready()
    texts = [f"the cat is in the city {'cat ' * (number % 40)} {number}" for number in range(2048)]
    try:
        with server.client() as client, ThreadPoolExecutor(1) as pool:
            pending = pool.submit(client.post, "/v1/embeddings", json={"input": texts})
            wait_until(lambda: count_batches(client) > 100)
            assert (killed := server.engine) is not None
            os.kill(killed, signal.SIGKILL)
            reply = pending.result(60)
            assert reply.status_code == 200
            wait_until(lambda: count_batches(client) > 0)
            assert count_batches(client) < len(texts) - 50  # the second engine computed the rest
            data = reply.json()["data"]
            single = client.post("/v1/embeddings", json={"input": texts[-1]}).json()["data"][0]
            assert len(data) == len(texts)
            assert data[-1]["embedding"] == pytest.approx(single["embedding"], abs=1e-5)
    finally:
        server.stop()


def test_requests_wait_while_a_stopped_engine_is_noticed_and_replaced(server: ServerProcess) -> None:
    with Load(server) as load:
        wait_until(lambda: load.num_answered > 10)
        assert (stopped := server.engine) is not None
        os.kill(stopped, signal.SIGSTOP)
        wait_until(lambda: not is_alive(stopped))
        wait_for_another_engine(server, stopped)
        num_answered = load.num_answered
        wait_until(lambda: load.num_answered > num_answered + 10)
    assert not load.failures


def test_of_64_requests_only_the_one_that_crashes_the_engine_fails(folder: Path) -> None:
    inputs = [[CRASHED, 100] if number == 17 else [10 + number, 100] for number in range(64)]
    with failing_server(folder, "2") as url, httpx.Client(base_url=url, timeout=60) as client:

        def embed(item: list[int]) -> httpx.Response:
            return client.post("/v1/embeddings", json={"input": [item]})

        with ThreadPoolExecutor(64) as pool:
            replies = list(pool.map(embed, inputs))
        for number, (item, reply) in enumerate(zip(inputs, replies, strict=True)):
            if number == 17:
                assert (reply.status_code, reply.json()["error"]["code"]) == (500, "input_crashed_engine")
            else:
                assert reply.json()["data"][0]["embedding"] == item
        for _ in range(4):  # whichever front-end gets it
            with httpx.Client(base_url=url, timeout=60) as other:
                assert other.post("/v1/embeddings", json={"input": [inputs[17]]}).status_code == 500
        metrics = read_metrics(client)
    assert metrics["cenote_engine_restarts_total"] == 2
    assert metrics["cenote_poison_inputs_total"] == 1
    assert metrics["cenote_requests_quarantined_total"] >= 1


@pytest.mark.slow
def test_of_64_inputs_of_a_request_the_error_names_the_one_that_crashes_the_engine(folder: Path) -> None:
    inputs = [[CRASHED] if number == 17 else [10 + number] for number in range(64)]
    with failing_server(folder, "1") as url, httpx.Client(base_url=url, timeout=60) as client:
        reply = client.post("/v1/embeddings", json={"input": inputs})
        assert (reply.status_code, reply.json()["error"]["index"]) == (500, 17)
        assert "input 17 crashed" in reply.json()["error"]["message"]
        assert read_metrics(client)["cenote_engine_restarts_total"] == 2
        without = client.post("/v1/embeddings", json={"input": inputs[:17] + inputs[18:]})
        assert [entry["embedding"] for entry in without.json()["data"]] == inputs[:17] + inputs[18:]


@pytest.mark.slow
def test_poison_requests_do_not_use_up_the_restarts_of_the_server(folder: Path) -> None:
    with failing_server(folder, "1") as url, httpx.Client(base_url=url, timeout=60) as client:
        for number in range(3):  # six crashes
            assert client.post("/v1/embeddings", json={"input": [[20]]}).status_code == 200
            assert client.post("/v1/embeddings", json={"input": [[CRASHED, 100 + number]]}).status_code == 500
        assert client.post("/v1/embeddings", json={"input": [[20]]}).status_code == 200
        assert client.get("/health/live").status_code == 200
        assert read_metrics(client)["cenote_engine_restarts_total"] == 6


@pytest.mark.slow
def test_requests_that_wait_get_503_when_the_server_shuts_down_without_an_engine(server: ServerProcess) -> None:
    assert (killed := server.engine) is not None
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: server.engine not in (None, killed))
    assert server.engine is not None
    os.kill(server.engine, signal.SIGSTOP)  # it does not become ready
    with server.client() as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.post, "/v1/embeddings", json={"input": "a"})
        wait_until(lambda: client.get("/load").json()["server_load"] == 1)
        server.signal()
        reply = waiting.result(10)
    assert reply.status_code == 503 and reply.headers["retry-after"]
    assert "shutting down" in reply.json()["error"]["message"]
    assert server.wait() == 0
