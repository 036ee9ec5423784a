"""The example package in a server process, with and without front-end processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.plugins.conftest import TEXTS

TIMEOUT_S = 90.0


@pytest.fixture(scope="module")
def client(
    installed_example: Path,
    default_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[httpx.Client]:
    log = tmp_path_factory.mktemp("served") / "log"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "cenote", "serve", str(default_folder), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--device", "cpu", "--io-processor-plugin", "near_duplicates"]
    path = os.pathsep.join([str(installed_example), str(Path(__file__).parents[2])])
    with log.open("w") as log_file:
        server = subprocess.Popen(command, stdout=log_file, stderr=log_file, env=os.environ | {"PYTHONPATH": path})
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
        try:
            end = time.monotonic() + TIMEOUT_S
            while not is_ready(client):
                assert server.poll() is None and time.monotonic() < end, log.read_text()
                time.sleep(0.1)
            yield client
        finally:
            server.terminate()
            server.wait(60)


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def test_data_is_returned_in_the_plugins_format(client: httpx.Client) -> None:
    reply = client.post("/pooling", json={"data": {"texts": TEXTS, "threshold": 0.8}})

    assert reply.status_code == 200
    body = reply.json()
    assert set(body) == {"request_id", "created_at", "data"}
    assert body["request_id"].startswith("pooling-")
    assert body["data"]["kept"] == [0, 1, 4]
    assert [(item["index"], item["of"]) for item in body["data"]["duplicates"]] == [(2, 0), (3, 1)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"texts": ["a"], "threshold": 2}, "threshold must be a cosine between -1 and 1, got 2"),
        ("text", "data must be an object with texts and a threshold, got str"),
        (None, "The 'data' field of the prompt is expected to contain the prompt data and it cannot be None."),
    ],
    ids=str,
)
def test_data_that_the_plugin_refuses_is_a_400_with_its_message(
    client: httpx.Client, data: object, message: str
) -> None:
    reply = client.post("/pooling", json={"data": data, "task": "plugin"})

    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith(message)
    assert reply.json()["error"]["param"] == "data"


def test_every_other_task_is_served_as_before(client: httpx.Client) -> None:
    pooled = client.post("/pooling", json={"input": "a", "task": "token_embed"})
    embedded = client.post("/v1/embeddings", json={"input": "a"})

    assert len(pooled.json()["data"][0]["data"]) == 3
    assert len(embedded.json()["data"][0]["embedding"]) == 384
