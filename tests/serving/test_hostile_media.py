"""Many hostile images and URLs sent to a real server are refused, with little effect on text requests."""

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
LIMIT_IMAGES = ("png at the limit", "jpeg progressive at the limit, cut")  # more of these would take too long
NUM_CLIENTS = 4
JSON = {"content-type": "application/json"}
NUM_TEXTS = 1000  # sent before the hostile images, by as many clients, as the baseline


@dataclass
class ResourceUsage:
    """Peak memory and latencies of text requests during a measurement."""

    peak_bytes: int = 0
    latencies: list[float] = field(default_factory=list)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that may fetch from every public host, so that only the address itself can be refused."""
    folder = tmp_path_factory.mktemp("multimodal")
    save_tiny_qwen3_vl(folder)
    server = ServerProcess(str(folder), "--dtype", "float32", "--allow-any-media-domain").wait_until_ready()
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.output


@contextmanager
def canary() -> Iterator[tuple[int, list[Any]]]:
    """Listen on a local port; yield the port and the list of clients that connected."""
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


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process and its children."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return pages * os.sysconf("SC_PAGESIZE") + sum(map(resident_bytes, map(int, children)))


def embed_text(client: httpx.Client, number: int) -> float:
    """Return the latency; all texts are different, so that none is deduplicated."""
    started_at = time.perf_counter()
    reply = client.post("/v1/embeddings", json={"input": f"the cat is in the city {number}"})
    assert reply.status_code == 200, reply.text
    return time.perf_counter() - started_at


@contextmanager
def measure_usage(server: ServerProcess) -> Iterator[ResourceUsage]:
    usage, ended = ResourceUsage(), threading.Event()

    def repeat(seconds: float, action: Callable[[], None]) -> Callable[[], None]:
        def loop() -> None:
            while not ended.wait(seconds):
                action()

        return loop

    def measure_memory() -> None:
        with suppress(FileNotFoundError, ProcessLookupError):  # a child has just ended
            usage.peak_bytes = max(usage.peak_bytes, resident_bytes(server.process.pid))

    with server.client() as client:

        def measure_latency() -> None:
            usage.latencies.append(embed_text(client, 10_000 + len(usage.latencies)))

        loops = (repeat(0.02, measure_memory), repeat(0.005, measure_latency))
        threads = [threading.Thread(target=loop) for loop in loops]
        for thread in threads:
            thread.start()
        try:
            yield usage
        finally:
            ended.set()
            for thread in threads:
                thread.join()


def forbidden_urls(port: int) -> list[str]:
    """Return URLs of local hosts; names that need DNS are tested elsewhere, with a fake resolver."""
    hosts = (*LITERALS, "localhost", "LOCALHOST.", "localhost..")
    urls = [url.replace("{port}", str(port)) for url in WHOLE if "example" not in url]
    return [f"http://{host}:{port}/a.png" for host in hosts] + urls


def hostile_data_urls() -> dict[str, str]:
    return {
        name: f"data:image/png;base64,{base64.b64encode(content).decode()}"
        for name, content in hostile_images().items()
        if "at the limit" not in name or name in LIMIT_IMAGES
    }


def encode_request(url: str) -> bytes:
    return json.dumps({"messages": [make_message(image_part(url))]}).encode()


def p99(latencies: list[float]) -> float:
    return float(np.quantile(latencies, 0.99))


@pytest.mark.slow  # tests/inputs/media has the images
def test_many_hostile_images_do_not_affect_other_requests(server: ServerProcess) -> None:
    with server.client(headers=JSON) as client, canary() as (port, visitors):
        urls = forbidden_urls(port)
        # encoded before the measurement, so that this process has little else to do meanwhile
        named_urls = (*zip(urls, urls, strict=True), *hostile_data_urls().items())
        requests = {name: encode_request(url) for name, url in named_urls}
        assert client.post("/v1/embeddings", content=encode_request(data_uri(CAT))).status_code == 200
        before = resident_bytes(server.process.pid)
        with measure_usage(server) as baseline, ThreadPoolExecutor(NUM_CLIENTS) as clients:
            list(clients.map(lambda number: embed_text(client, number), range(NUM_TEXTS)))

        with measure_usage(server) as usage, ThreadPoolExecutor(NUM_CLIENTS) as clients:
            responses = clients.map(lambda name: client.post("/v1/embeddings", content=requests[name]), requests)
            replies = dict(zip(requests, responses, strict=True))

        assert client.post("/v1/embeddings", content=encode_request(data_uri(CAT))).status_code == 200

    assert {name: reply.text for name, reply in replies.items() if reply.status_code not in (200, 400)} == {}
    assert [url for url in urls if replies[url].status_code != 400] == []
    assert replies["png at the limit"].status_code == 200  # valid images are not refused because of the others
    for name, reply in replies.items():
        assert reply.status_code == 200 or "messages[0].content[0]" in reply.json()["message"], (name, reply.text)
    assert visitors == []
    growth, slow, fast = usage.peak_bytes - before, p99(usage.latencies), p99(baseline.latencies)
    print(f"p99 of texts {fast * 1e3:.1f} ms, with hostile images {slow * 1e3:.1f} ms; +{growth / 2**20:.0f} MiB")
    assert growth < MAX_GROWTH_BYTES
    assert min(len(usage.latencies), len(baseline.latencies)) > 50
    assert slow < 3 * fast + 0.05
