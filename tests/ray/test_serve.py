"""Ray Serve: killed replicas, rolling updates, several models by name, scale to zero."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import NotFoundError, OpenAI
from ray import serve

from cenote.ray.serve import app
from tests.ray.conftest import IS_FULL, find_workers
from tests.tiny import tiny_bert

PORT = 18_940
LOAD_S = 20.0 if IS_FULL else 2.0  # before and after each event


@pytest.fixture
def port(two_nodes: Any) -> Iterator[int]:
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": PORT})
    yield PORT
    serve.shutdown()


class Load:
    """Requests of OpenAI clients with their default retries."""

    def __init__(self, port: int, num_clients: int = 4) -> None:
        self.client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=60)
        self.sizes: list[int] = []  # of the vectors, in the order of the answers
        self.errors: list[Exception] = []
        self.is_over = threading.Event()
        self.threads = [threading.Thread(target=self._run, daemon=True) for _ in range(num_clients)]

    def _run(self) -> None:
        while not self.is_over.is_set():
            try:
                answer = self.client.embeddings.create(model="mini", input=["a cat in the river"] * 4)
                self.sizes.append(len(answer.data[0].embedding))
            except Exception as error:
                self.errors.append(error)

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.is_over.set()
        for thread in self.threads:
            thread.join()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def options(folder: Path, **others: Any) -> dict[str, Any]:
    return {"model": str(folder), "served_model_name": "mini", "num_cpus": 0.9, "disable_access_log": True, **others}


def test_no_request_fails_when_a_replica_is_killed_or_the_model_is_replaced(
    cluster: Any, port: int, default_folder: Path, tmp_path: Path
) -> None:
    tiny_bert(tmp_path)
    serve.run(app(options(default_folder, min_replicas=2)), name="cenote", route_prefix="/")

    workers = find_workers(cluster, "ServeReplica:cenote:mini")
    idle_s = [cpu_seconds(pid) for pid in workers]
    with Load(port) as load:
        time.sleep(LOAD_S)
        used_s = [cpu_seconds(pid) - before for pid, before in zip(workers, idle_s, strict=True)]
        assert len(used_s) == 2 and min(used_s) > 0.3 * max(used_s)  # whichever node the proxy is on
        os.kill(find_workers(cluster, "ServeReplica:cenote:mini")[0], signal.SIGKILL)
        num_before = len(load.sizes)
        time.sleep(2 * LOAD_S)
        assert len(load.sizes) > num_before
        serve.run(app(options(tmp_path, min_replicas=2)), name="cenote", route_prefix="/")
        time.sleep(LOAD_S)

    assert load.errors == []
    assert set(load.sizes) == {384, 32}
    assert load.sizes[-1] == 32
    serve.delete("cenote")


def test_several_models_are_served_by_name_and_start_with_their_first_request(
    cluster: Any, port: int, default_folder: Path, tmp_path: Path
) -> None:
    tiny_bert(tmp_path / "tiny")
    models = tmp_path / "models.yaml"
    entries = [{"name": "mini", "source": str(default_folder)}, {"name": "tiny", "source": str(tmp_path / "tiny")}]
    models.write_text(json.dumps(entries))
    settings = {"models": str(models), "min_replicas": 0, "max_replicas": 1, "num_cpus": 0.9, "api_key": ["secret"]}
    serve.run(app(settings), name="cenote", route_prefix="/")
    assert find_workers(cluster, "ServeReplica:cenote:mini") == []
    client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="secret", timeout=100)

    sizes = {name: len(client.embeddings.create(model=name, input="a").data[0].embedding) for name in ("tiny", "mini")}

    assert sizes == {"tiny": 32, "mini": 384}
    assert [model.id for model in client.models.list()] == ["mini", "tiny"]
    with pytest.raises(NotFoundError, match="`other` does not exist"):
        client.embeddings.create(model="other", input="a")
    assert request_ids(port, "secret") == ["my-id"]
    serve.delete("cenote")


def test_the_command_serves_on_this_machine_until_a_signal(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [sys.executable, "-m", "cenote", "serve", str(tmp_path), "--engine", "ray", "--port", str(PORT + 1)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "with Ray on port" in line:
            break
    client = OpenAI(base_url=f"http://127.0.0.1:{PORT + 1}/v1", api_key="none", timeout=60)
    try:
        assert len(client.embeddings.create(model=str(tmp_path), input="a").data[0].embedding) == 32
    finally:
        process.send_signal(signal.SIGTERM)
        process.stderr.close()
    assert process.wait(60) == 0, lines


def request_ids(port: int, key: str) -> list[str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"content-type": "application/json", "x-request-id": "my-id", "authorization": f"Bearer {key}"}
    connection.request("POST", "/v1/embeddings", json.dumps({"input": "a", "model": "tiny"}), headers)
    response = connection.getresponse()
    assert response.status == 200
    response.read()
    connection.close()
    return response.headers.get_all("x-request-id") or []
