"""Engine processes that are killed, stopped or crash: the supervisor replaces them, and no process stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.tiny import tiny_bert

from .server_process import ServerProcess, children, is_alive, wait_until

BODY = {"input": "the cat is in the city"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("supervised")
    tiny_bert(folder)
    return folder


@pytest.fixture(params=["1", "2"], ids=["one front-end", "two front-ends"])
def server(folder: Path, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    server = ServerProcess(str(folder), "--dtype", "float32", "--api-server-count", request.param)
    server.wait_until_ready()
    yield server
    server.stop()


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


def test_a_killed_engine_is_replaced_again_and_again(server: ServerProcess) -> None:
    expected = embed(server).json()["data"]
    num_children, num_files = len(children(server.process.pid)), resources(server)
    for _ in range(5):
        killed = engine_pid(server)
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: status(server, "/health/ready") == 503)
        assert status(server, "/health/live") == 200
        reply = embed(server)
        assert reply.status_code == 503 and reply.headers["retry-after"]
        assert "restarted" in reply.json()["error"]["message"] or "exited" in reply.json()["error"]["message"]
        assert status(server, "/v1/models") == 200
        wait_until(lambda: status(server, "/health/ready") == 200)
        assert engine_pid(server) != killed
        assert embed(server).json()["data"] == expected

    assert len(children(server.process.pid)) == num_children
    assert resources(server) <= num_files
    with server.client() as client:
        lines = client.get("/metrics").text.splitlines()
    restarts = [line for line in lines if line.startswith("cenote_engine_restarts_total{")]
    assert float(restarts[0].rpartition(" ")[2]) == 5
    assert server.output.count("exited with SIGKILL; starting another now") == 5
    assert server.stop() == 0


def test_a_stopped_engine_is_noticed_and_replaced(server: ServerProcess) -> None:
    stopped = engine_pid(server)
    os.kill(stopped, signal.SIGSTOP)
    server.wait_for_line("it gave no sign of life for 5")

    wait_until(lambda: not is_alive(stopped))
    wait_until(lambda: status(server, "/health/ready") == 200)
    assert embed(server).status_code == 200


def test_a_crash_in_native_code_is_logged_with_its_stack(server: ServerProcess) -> None:
    os.kill(engine_pid(server), signal.SIGSEGV)

    line = server.wait_for_line("has ended: exited with SIGSEGV")
    assert "last line:" in line
    assert "Fatal Python error: Segmentation fault" in server.output
    wait_until(lambda: status(server, "/health/ready") == 200)


def test_requests_in_flight_when_the_engine_dies_get_503_and_can_be_retried(folder: Path) -> None:
    server = ServerProcess(str(folder), "--dtype", "float32", "--max-num-seqs", "1").wait_until_ready()
    texts = [f"the cat is in the city {'cat ' * (number % 40)} {number}" for number in range(2048)]
    try:
        with server.client() as client, server.client() as other, ThreadPoolExecutor(1) as pool:
            pending = pool.submit(other.post, "/v1/embeddings", json={"input": texts})
            wait_until(lambda: client.get("/load").json()["server_load"] == 1)
            time.sleep(0.2)
            os.kill(engine_pid(server), signal.SIGKILL)
            reply = pending.result(30)
            assert reply.status_code == 503
            assert reply.headers["retry-after"]
            wait_until(lambda: status(server, "/health/ready") == 200)
            assert client.post("/v1/embeddings", json=BODY).status_code == 200
    finally:
        server.stop()


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
            assert client.get("/health/ready").json()["state"] == "restarting"
            assert client.get("/v1/models").json()["data"][0]["root"] == str(folder)
            assert "cenote_engine_restarts_total" in client.get("/metrics").text
            reply = client.post("/v1/embeddings", json=BODY)
            assert reply.status_code == 503 and "is being restarted" in reply.json()["error"]["message"]
        os.kill(engine_pid(server), signal.SIGCONT)
        wait_until(lambda: status(server, "/health/ready") == 200)
        assert embed(server).status_code == 200
    finally:
        server.stop()


# the supervisor, or with more arguments the engine process, whose device fails for the token id 7 and hangs for 8
FAILING_DEVICE = """
import sys, time

def load(init):
    from cenote.api.wire.engine_options import decode_engine_config
    from cenote.engine.engine import PoolingEngine
    from cenote.engine.execution.executor import EchoExecutor
    from cenote.loading.load import load_model

    def fail(batch):
        if 7 in batch.inputs.token_ids:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if 8 in batch.inputs.token_ids:
            time.sleep(60)

    config = decode_engine_config(init.config)
    return PoolingEngine(load_model(config), config, EchoExecutor(fail))

if sys.argv[1] == "engine":
    from cenote.api.engine_process.__main__ import main
    sys.exit(main(sys.argv[2:], load))
from cenote.api.app_state import AppState
from cenote.api.log_config import configure_logging
from cenote.api.sockets import open_socket
from cenote.api.supervisor.supervisor import run_supervisor
from cenote.config.engine import EngineConfig
from cenote.config.server import ServerConfig

settings = ServerConfig(host="127.0.0.1", port=0, api_server_count=int(sys.argv[3]))
configure_logging(settings)
listener = open_socket(settings)
print(listener.getsockname()[1], flush=True)
config = EngineConfig(model=sys.argv[1], dtype="float32", step_timeout_s=0.5)
run_supervisor(AppState(settings), [listener], config, [sys.executable, "-c", sys.argv[2], "engine"])
"""


@pytest.mark.parametrize("num_front_ends", ["1", "2"])
@pytest.mark.parametrize(
    ("token_id", "reason"), [(7, "an illegal memory access"), (8, "did not finish within 0.5 s")], ids=["lost", "hung"]
)
def test_a_device_that_fails_costs_one_engine_process(
    folder: Path, num_front_ends: str, token_id: int, reason: str
) -> None:
    command = [sys.executable, "-c", FAILING_DEVICE, str(folder), FAILING_DEVICE, num_front_ends]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        base_url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        try:
            with httpx.Client(base_url=base_url, timeout=60) as client:

                def is_ready() -> bool:
                    return client.get("/health/ready").status_code == 200

                wait_until(is_ready)
                assert client.post("/v1/embeddings", json={"input": [[5]]}).status_code == 200
                reply = client.post("/v1/embeddings", json={"input": [[5, token_id]]})
                assert reply.status_code == 503 and reply.headers["retry-after"]
                assert reason in reply.json()["error"]["message"]
                health = client.get("/health/ready")
                assert (health.status_code, health.json()["state"]) == (503, "restarting")
                wait_until(is_ready)
                assert client.post("/v1/embeddings", json={"input": [[5]]}).status_code == 200
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


def test_nothing_is_left_when_the_supervisor_is_killed(server: ServerProcess) -> None:
    processes = children(server.process.pid)
    assert engine_pid(server) in processes
    server.process.kill()
    killed_at = time.monotonic()

    wait_until(lambda: not any(map(is_alive, processes)))
    assert time.monotonic() - killed_at < 2


def test_an_engine_that_fails_again_and_again_is_given_up(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    server = ServerProcess(str(copy), "--dtype", "float32").wait_until_ready()
    try:
        (copy / "config.json").write_text("{")
        os.kill(engine_pid(server), signal.SIGKILL)
        server.wait_for_line("the model cannot be loaded")

        with server.client() as client:
            reply = client.get("/health/ready")
        assert reply.status_code == 503 and reply.json()["state"] == "restarting"
        assert "config.json" in reply.json()["error"]["message"]
    finally:
        server.stop()


def test_a_terminate_signal_to_every_process_drains_the_server(folder: Path) -> None:
    """A service manager signals all processes of a service at once; the engine must finish the requests."""
    server = ServerProcess(str(folder), "--dtype", "float32", "--log-format", "json")
    server.wait_for_line('"event": "ready"')
    processes = [server.process.pid, *children(server.process.pid)]
    for pid in processes:
        os.kill(pid, signal.SIGTERM)

    assert server.wait() == 0
    assert not any(map(is_alive, processes))
    assert {json.loads(line)["level"] for line in server.lines} == {"info"}
