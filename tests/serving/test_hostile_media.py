"""A real server under a storm of hostile images and addresses: it refuses them by name, and texts hardly notice."""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.api.image_helpers import CAT, data_uri, image_part, make_message
from tests.inputs.media.hostile_images import hostile_images
from tests.inputs.media.hostile_urls import LITERALS, WHOLE
from tests.models.tiny_qwen3_vl import save_tiny_qwen3_vl

from .server_process import ServerProcess

MAX_GROWTH_BYTES = 600 * 1024**2
LARGEST = ("png at the limit", "jpeg progressive at the limit, cut")  # two of these take long enough
NUM_CLIENTS = 4
JSON = {"content-type": "application/json"}
NUM_TEXTS = 1000  # before the storm, from as many clients, to know what is usual


@dataclass
class ResourceUsage:
    """What happened while something else went on."""

    peak_bytes: int = 0
    latencies: list[float] = field(default_factory=list)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One that may fetch from every public host, so that nothing but the address can be what is wrong."""
    folder = tmp_path_factory.mktemp("seeing")
    save_tiny_qwen3_vl(folder)
    found = ServerProcess(str(folder), "--dtype", "float32", "--allow-any-media-domain").wait_until_ready()
    yield found
    assert found.stop() == 0
    assert "Traceback" not in found.output


@contextmanager
def canary() -> Iterator[tuple[int, list[Any]]]:
    """A port at which somebody listens, and who came."""
    visitors: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def listen() -> None:
            while True:
                try:
                    connection, address = listener.accept()
                except OSError:
                    return
                visitors.append(address)
                connection.close()

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield port, visitors
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def memory(pid: int) -> int:
    """Of a process and its children, in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return pages * os.sysconf("SC_PAGESIZE") + sum(map(memory, map(int, children)))


def embed_text(client: httpx.Client, number: int) -> float:
    """How long it took; no two texts are alike, or the answer would be known."""
    began = time.perf_counter()
    reply = client.post("/v1/embeddings", json={"input": f"the cat is in the city {number}"})
    assert reply.status_code == 200, reply.text
    return time.perf_counter() - began


@contextmanager
def measure_usage(served: ServerProcess) -> Iterator[ResourceUsage]:
    watched, ended = ResourceUsage(), threading.Event()

    def every(seconds: float, do: Callable[[], None]) -> Callable[[], None]:
        def loop() -> None:
            while not ended.wait(seconds):
                do()

        return loop

    def weigh() -> None:
        with suppress(FileNotFoundError, ProcessLookupError):  # a child has just ended
            watched.peak_bytes = max(watched.peak_bytes, memory(served.process.pid))

    with served.client() as client:

        def write() -> None:
            watched.latencies.append(embed_text(client, 10_000 + len(watched.latencies)))

        threads = [threading.Thread(target=every(0.02, weigh)), threading.Thread(target=every(0.005, write))]
        for thread in threads:
            thread.start()
        try:
            yield watched
        finally:
            ended.set()
            for thread in threads:
                thread.join()


def addresses(port: int) -> list[str]:
    """Names that would have to be looked up elsewhere are tried where nobody is asked."""
    hosts = (*LITERALS, "localhost", "LOCALHOST.", "localhost..")
    whole = [url.replace("{port}", str(port)) for url in WHOLE if "example" not in url]
    return [f"http://{host}:{port}/a.png" for host in hosts] + whole


def files() -> dict[str, str]:
    return {
        name: f"data:image/png;base64,{base64.b64encode(content).decode()}"
        for name, content in hostile_images().items()
        if "at the limit" not in name or name in LARGEST
    }


def body(url: str) -> bytes:
    return json.dumps({"messages": [make_message(image_part(url))]}).encode()


def p99(latencies: list[float]) -> float:
    return float(np.quantile(latencies, 0.99))


def test_many_hostile_images_do_not_affect_other_requests(served: ServerProcess) -> None:
    with served.client(headers=JSON) as client, canary() as (port, visitors):
        refused, tried = addresses(port), files()
        # made before, since this process has other things to do then
        storm = {name: body(url) for name, url in (*zip(refused, refused, strict=True), *tried.items())}
        assert client.post("/v1/embeddings", content=body(data_uri(CAT))).status_code == 200
        before = memory(served.process.pid)
        with measure_usage(served) as usual, ThreadPoolExecutor(NUM_CLIENTS) as clients:
            list(clients.map(lambda number: embed_text(client, number), range(NUM_TEXTS)))

        with measure_usage(served) as watched, ThreadPoolExecutor(NUM_CLIENTS) as clients:
            found = clients.map(lambda name: client.post("/v1/embeddings", content=storm[name]), storm)
            replies = dict(zip(storm, found, strict=True))

        assert client.post("/v1/embeddings", content=body(data_uri(CAT))).status_code == 200

    assert {name: reply.text for name, reply in replies.items() if reply.status_code not in (200, 400)} == {}
    assert [name for name in refused if replies[name].status_code != 400] == []
    assert replies["png at the limit"].status_code == 200  # the others were not refused for being in bad company
    for name, reply in replies.items():
        assert reply.status_code == 200 or "messages[0].content[0]" in reply.json()["message"], (name, reply.text)
    assert visitors == []
    grown, slow, fast = watched.peak_bytes - before, p99(watched.latencies), p99(usual.latencies)
    print(f"p99 of texts {fast * 1e3:.1f} ms, in the storm {slow * 1e3:.1f} ms; grew by {grown / 2**20:.0f} MiB")
    assert grown < MAX_GROWTH_BYTES
    assert min(len(watched.latencies), len(usual.latencies)) > 50
    assert slow < 3 * fast + 0.05
