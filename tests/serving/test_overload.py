"""A real server with more work or more bytes than it can hold: it refuses at once and keeps answering."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving.server_process import peak_megabytes
from tests.tiny import tiny_bert

from .conftest import StartServer
from .server_process import ServerProcess

MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Two front-ends that share 100 MB, and a model that computes one sequence at a time."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_bert(folder)
    flags = ("--api-server-count", "2", "--max-inflight-bytes", "100000000", "--max-num-seqs", "1")
    server = ServerProcess(str(folder), "--served-model-name", "tiny", *flags).wait_until_ready()
    yield server
    assert server.stop() == 0


def metric(server: ServerProcess, start: str) -> float:
    with server.client() as client:
        lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(start))


def test_large_bodies_above_the_limit_are_refused_and_others_answered(small_server: ServerProcess) -> None:
    body = json.dumps({"prompt": "the cat " * (5 * MEGABYTE)}).encode()  # 40 MB
    before = peak_megabytes(small_server)

    def post(_: int) -> httpx.Response:
        with small_server.client() as client:
            return client.post("/tokenize", content=body, headers={"content-type": "application/json"})

    with ThreadPoolExecutor(10) as threads, small_server.client() as client:
        replies = [threads.submit(post, index) for index in range(10)]
        while not all(reply.done() for reply in replies):
            assert client.post("/v1/embeddings", json={"input": "the cat"}).status_code == 200
            assert client.get("/metrics").status_code == 200
            time.sleep(0.05)
        statuses = Counter(reply.result().status_code for reply in replies)

    assert set(statuses) <= {400, 413, 429} and statuses[429] + statuses[413] >= 6, statuses
    assert peak_megabytes(small_server) - before < 1200  # ten bodies with their tokens take several gigabytes
    assert metric(small_server, "cenote_inflight_bytes") == 0
    assert metric(small_server, "cenote_requests_refused_total") >= 6


def test_more_requests_than_the_model_computes_are_refused_at_once(small_server: ServerProcess) -> None:
    body: dict[str, Any] = {"input": ["the cat is in the city " * 15] * 30, "truncate_prompt_tokens": -1}
    outcomes: list[tuple[int, float, httpx.Headers]] = []

    def send_requests(_: int) -> None:
        with small_server.client() as client:
            for index in range(25):
                started_at = time.perf_counter()
                reply = client.post("/v1/embeddings", json={**body, "user": str(index)})
                outcomes.append((reply.status_code, time.perf_counter() - started_at, reply.headers))

    with ThreadPoolExecutor(32) as threads:
        list(threads.map(send_requests, range(32)))

    statuses = Counter(status for status, _, _ in outcomes)
    assert set(statuses) <= {200, 429} and statuses[200] > 0, statuses
    for status, _, headers in outcomes:
        if status == 429:
            assert int(headers["retry-after"]) >= 1 and int(headers["retry-after-ms"]) >= 50
    assert metric(small_server, "cenote_admitted_tokens") == 0


def test_the_speed_that_the_engine_measures_reaches_admission(small_server: ServerProcess) -> None:
    texts = [f"the cat {number} is in the city " * 15 for number in range(2000)]
    with small_server.client() as client:
        assert client.post("/v1/embeddings", json={"input": texts, "truncate_prompt_tokens": -1}).status_code == 200

    assert metric(small_server, "cenote_drain_tokens_per_second") > 0


CONNECTIONS, TEXT = 256, "how deep is the water in the cave?"


async def post_in_turn(port: int, number: int, start: asyncio.Event) -> list[bytes]:
    """Open a connection, and send two requests over it, one after the other; return their statuses."""
    body = json.dumps({"input": f"{number}: {TEXT}", "encoding_format": "base64"}).encode()
    head = b"POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await start.wait()
    statuses = []
    for _ in range(2):
        writer.write(head % len(body) + body)
        reply = (await reader.readuntil(b"\r\n\r\n")).lower()
        statuses.append(reply.split(b" ", 2)[1])
        await reader.readexactly(int(reply.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    writer.close()
    return statuses


@pytest.mark.slow
def test_many_connections_with_a_short_text_each_are_not_refused_right_after_the_start(
    start_server: StartServer,
) -> None:
    server = start_server("--api-server-count", "1").wait_until_ready()

    async def post_all() -> Counter[bytes]:
        start = asyncio.Event()
        tasks = [asyncio.create_task(post_in_turn(server.port, number, start)) for number in range(CONNECTIONS)]
        await asyncio.sleep(0.3)  # all are connected
        start.set()
        return Counter(itertools.chain.from_iterable(await asyncio.gather(*tasks)))

    assert asyncio.run(post_all()) == {b"200": 2 * CONNECTIONS}
    assert metric(server, "cenote_requests_refused_total") == 0


def test_a_deadline_is_kept_by_the_server(small_server: ServerProcess) -> None:
    texts = [f"the cat is in the city {index} " * 15 for index in range(2048)]
    with small_server.client() as client:
        started_at = time.perf_counter()
        reply = client.post(
            "/v1/embeddings",
            json={"input": texts, "truncate_prompt_tokens": -1},
            headers={"x-request-timeout-ms": "150"},
        )

    assert reply.status_code == 504 and "deadline" in reply.json()["message"]
    assert time.perf_counter() - started_at < 5
    assert metric(small_server, "cenote_admitted_tokens") == 0
    assert Path(f"/proc/{small_server.process.pid}").exists()
