"""Engine processes that are killed, stopped or crash: the supervisor replaces them, and no process stays behind."""

from __future__ import annotations

import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from .failing_device import CRASHED, HUNG, LOST, failing_server
from .server_process import ServerProcess, children, is_alive, read_metrics, wait_until

BODY = {"input": "the cat is in the city"}
NUM_KILLS = 20 if os.environ.get("FAULT_TESTS") == "full" else 3


def status(server: ServerProcess, path: str) -> int:
    with server.client() as client:
        return client.get(path).status_code


def embed(server: ServerProcess) -> httpx.Response:
    with server.client() as client:
        return client.post("/v1/embeddings", json=BODY)


def engine_pid(server: ServerProcess) -> int:
    assert server.engine is not None
    return server.engine


def resources(server: ServerProcess) -> int:
    """Return the number of open files of the supervisor: sockets, pipes and shared memory."""
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


@pytest.mark.slow
def test_a_killed_engine_is_replaced_again_and_again(server: ServerProcess) -> None:
    expected = embed(server).json()["data"]
    num_children, num_files = len(children(server.process.pid)), resources(server)
    num_children, num_files = num_children + 1, num_files + 1  # the engine launcher, and the socket to it
    for _ in range(NUM_KILLS):
        killed = engine_pid(server)
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: status(server, "/health/ready") == 503)
        assert status(server, "/health/live") == 200
        assert status(server, "/v1/models") == 200
        assert embed(server).json()["data"] == expected  # it waits for the next engine
        assert status(server, "/health/ready") == 200
        assert engine_pid(server) != killed

    assert len(children(server.process.pid)) == num_children
    assert resources(server) <= num_files
    with server.client() as client:
        assert read_metrics(client)["cenote_engine_restarts_total"] == NUM_KILLS
    assert server.output.count("exited with SIGKILL; starting another now") == NUM_KILLS


def test_a_crash_in_native_code_is_logged_with_its_stack(server: ServerProcess) -> None:
    os.kill(engine_pid(server), signal.SIGSEGV)

    line = server.wait_for_line("has ended: exited with SIGSEGV")
    assert "last line:" in line
    assert "Fatal Python error: Segmentation fault" in server.output
    wait_until(lambda: status(server, "/health/ready") == 200)


@pytest.mark.slow
def test_front_ends_that_are_started_while_the_engine_restarts_tell_its_state(folder: Path) -> None:
    server = ServerProcess(str(folder), "--dtype", "float32", "--api-server-count", "2").wait_until_ready()
    try:
        killed = engine_pid(server)
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: server.engine not in (None, killed))
        os.kill(engine_pid(server), signal.SIGSTOP)  # it does not become ready
        for pid in children(server.process.pid):
            if pid != server.engine:
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: server.output.count("restarting in") == 2)
        with server.client() as client:
            wait_until(lambda: client.get("/health/live").status_code == 200)
            wait_until(lambda: client.get("/health/ready").json()["state"] == "restarting")
            card = client.get("/v1/models").json()["data"][0]
            assert (card["root"], card["state"]) == (folder.name, "restarting")
            assert "cenote_engine_restarts_total" in client.get("/metrics").text
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(embed, server)
            time.sleep(0.2)
            assert not waiting.done()
            os.kill(engine_pid(server), signal.SIGCONT)
            assert waiting.result().status_code == 200
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("token_id", "reason", "num_front_ends", "num_processes"),
    [
        pytest.param(LOST, "the device failed", "1", 2, marks=pytest.mark.slow),
        pytest.param(HUNG, "did not finish within 2 s", "2", 3, marks=pytest.mark.slow),
        pytest.param(CRASHED, "SIGSEGV", "2", 2, marks=pytest.mark.slow),  # test_replay.py has one
    ],
    ids=["lost", "hung", "crashed"],
)
def test_an_input_on_which_the_device_fails_costs_two_engine_processes_or_three_and_nobody_else(
    folder: Path, num_front_ends: str, token_id: int, reason: str, num_processes: int
) -> None:
    step_timeout_s = 2.0 if token_id == HUNG else 60.0
    with (
        failing_server(folder, num_front_ends, step_timeout_s) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        with ThreadPoolExecutor(2) as pool:
            fails = pool.submit(client.post, "/v1/embeddings", json={"input": [[5], [5, token_id]]})
            wait_until(lambda: client.get("/health/ready").status_code == 503)
            assert client.get("/health/ready").json()["state"] == "restarting"
            assert client.post("/v1/embeddings", json={"input": [[6]]}).json()["data"][0]["embedding"] == [6]
            reply = fails.result(60)
        assert reply.status_code == 500 and reply.headers["x-should-retry"] == "false"
        error = reply.json()["error"]
        assert (error["code"], error["index"]) == ("input_crashed_engine", 1)
        assert reason in error["message"]
        again = client.post("/v1/embeddings", json={"input": [[5, token_id]]})
        assert (again.status_code, again.json()["error"]["index"]) == (500, 0)
        assert client.post("/v1/embeddings", json={"input": [[5]]}).status_code == 200
        assert read_metrics(client)["cenote_engine_restarts_total"] == num_processes


def test_nothing_is_left_when_the_supervisor_is_killed(server: ServerProcess) -> None:
    processes = children(server.process.pid)
    assert engine_pid(server) in processes
    server.process.kill()
    killed_at = time.monotonic()

    wait_until(lambda: not any(map(is_alive, processes)))
    assert time.monotonic() - killed_at < 2
    assert server.wait() == -signal.SIGKILL  # the next test starts another one


@pytest.mark.slow
def test_a_model_comes_back_when_its_files_do(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "model")
    server = ServerProcess(str(copy), "--dtype", "float32").wait_until_ready()
    try:
        config = (copy / "config.json").read_text()
        (copy / "config.json").write_text("{")
        os.kill(engine_pid(server), signal.SIGKILL)
        server.wait_for_line("the model cannot be loaded.*starting another in 2.0 s")
        with server.client() as client:
            reply = client.get("/health/ready")
            assert reply.status_code == 503 and reply.json()["state"] == "restarting"
            assert "config.json" in reply.json()["error"]["message"]
            (failure,) = reply.json()["models"]
            assert "config.json" in failure["reason"] and 0 < time.time() - failure["since"] < 60
            assert client.get("/health/live").status_code == 200
            assert read_metrics(client)["cenote_model_down_seconds"] > 0
        (copy / "config.json").write_text(config)
        assert embed(server).status_code == 200  # it waits for the engine
        with server.client() as client:
            assert read_metrics(client)["cenote_model_down_seconds"] == 0
            assert client.get("/v1/models").json()["data"][0]["since"] is None
    finally:
        server.stop()


@pytest.mark.slow
def test_an_engine_is_replaced_although_its_cache_folder_cannot_be_used_any_more(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    server = ServerProcess(str(folder), "--dtype", "float32", "--result-cache-dir", str(cache)).wait_until_ready()
    try:
        assert embed(server).status_code == 200
        shutil.rmtree(cache)
        cache.write_text("a file")
        os.kill(engine_pid(server), signal.SIGKILL)
        assert embed(server).status_code == 200
        assert "nothing is cached there until it works" in server.wait_for_line("result cache .* failed")
    finally:
        server.stop()
