"""Large requests to a real server succeed or are refused in bounded time, without delaying other clients."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from typing import Any

import httpx
import numpy as np
import pytest

from tests.api.app_client import decode_base64
from tests.serving.server_process import peak_megabytes
from tests.suite import first_of

from .server_process import TIMEOUT_S, ServerProcess

MEGABYTE = 1_000_000
# generous, because other processes may use the cores; what these limits detect takes minutes
MAX_HEALTH_S, MAX_REQUEST_S = 5.0, 40.0

WORDS = "the water in the cave is clear and cold "
ONE_WORD = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=MEGABYTE))
LARGE_TEXTS = {
    "words": WORDS * (MEGABYTE // len(WORDS)),
    "one word": ONE_WORD,
    "one letter": "a" * MEGABYTE,
    "no spaces": "a.b," * (MEGABYTE // 4),
    "Chinese": "水" * (MEGABYTE // 3),
    "spaces": " " * MEGABYTE,
}


@contextmanager
def check_health_meanwhile(server: ServerProcess) -> Iterator[None]:
    """Request /health repeatedly during the block and check that it always responds soon."""
    started, ended, latencies = threading.Event(), threading.Event(), []

    def poll_health() -> None:
        with server.client() as client:
            while not ended.is_set():
                started_at = time.perf_counter()
                assert client.get("/health").status_code == 200
                latencies.append(time.perf_counter() - started_at)
                started.set()
                ended.wait(0.01)

    thread = threading.Thread(target=poll_health)
    thread.start()
    assert started.wait(TIMEOUT_S)
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert max(latencies) < MAX_HEALTH_S


def embed(server: ServerProcess, **body: Any) -> httpx.Response:
    """Send a request while another client polls /health, and check its duration."""
    started_at = time.perf_counter()
    with check_health_meanwhile(server), server.client() as client:
        reply = client.post("/v1/embeddings", json=body)
    assert time.perf_counter() - started_at < MAX_REQUEST_S
    return reply


def can_embed(server: ServerProcess) -> bool:
    with server.client() as client:
        return client.post("/v1/embeddings", json={"input": "hello"}).status_code == 200


def test_each_of_2048_texts_gets_its_own_embedding(shared_server: ServerProcess) -> None:
    texts = [f"number {number}" for number in range(2048)]

    with check_health_meanwhile(shared_server), shared_server.client() as client:
        reply = client.post("/v1/embeddings", json={"input": texts, "encoding_format": "base64"}).json()
        indices = [0, 1, 777, 2047]
        single = [client.post("/v1/embeddings", json={"input": texts[index]}).json()["data"][0] for index in indices]

    assert [item["index"] for item in reply["data"]] == list(range(2048))
    vectors = np.stack([decode_base64(item["embedding"]) for item in reply["data"]])
    assert vectors.shape == (2048, 384)
    cosines = vectors @ np.array([item["embedding"] for item in single]).T
    assert cosines.argmax(axis=0).tolist() == indices
    assert cosines.max(axis=0).min() > 0.999  # not equal: bfloat16 on CPUs with support for it


@pytest.mark.parametrize("kind", LARGE_TEXTS)
def test_a_megabyte_in_one_input_is_refused_with_its_length_and_the_limit(
    shared_server: ServerProcess, kind: str
) -> None:
    reply = embed(shared_server, input=["a", LARGE_TEXTS[kind]])

    error = reply.json()["error"]
    assert reply.status_code == 400 and error["index"] == 1
    assert "maximum context length is 256 tokens" in error["message"]
    assert f"your prompt contains {len(LARGE_TEXTS[kind])} characters" in error["message"]


@pytest.mark.parametrize("kind", LARGE_TEXTS)
@pytest.mark.parametrize("side", ["left", None])
def test_a_megabyte_in_one_input_is_truncated_on_request(
    shared_server: ServerProcess, kind: str, side: str | None
) -> None:
    reply = embed(
        shared_server,
        input=LARGE_TEXTS[kind],
        truncate_prompt_tokens=-1,
        truncation_side=side,
        return_token_counts=True,
    )

    assert reply.status_code == 200, reply.text[:500]
    counts = reply.json()["data"][0]["token_counts"]
    if kind in ("words", "no spaces", "Chinese"):
        assert reply.headers["x-truncated-inputs"] == "1"
        assert counts["used"] == 256 and counts["at_least"] and counts["truncated"] == counts["given"] - 256 > 0
    else:  # unknown words and spaces are few tokens, whatever their length
        assert counts["used"] == counts["given"] < 256


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["words", "one letter"])
def test_sixty_megabytes_in_one_input_are_processed_in_bounded_time(shared_server: ServerProcess, kind: str) -> None:
    text = LARGE_TEXTS[kind] * 60

    refused = embed(shared_server, input=text)
    truncated = embed(shared_server, input=text, truncate_prompt_tokens=-1, return_token_counts=True)

    assert refused.status_code == 400 and f"{len(text)} characters" in refused.json()["message"]
    assert truncated.status_code == 200 and truncated.headers["x-truncated-inputs"] == "1"
    assert truncated.json()["data"][0]["token_counts"]["at_least"]
    assert can_embed(shared_server)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/rerank", {"query": "a", "documents": [ONE_WORD, LARGE_TEXTS["words"]]}),
        ("/rerank", {"query": "a", "documents": [LARGE_TEXTS["words"]], "max_tokens_per_doc": 100}),
        ("/v2/embed", {"texts": [LARGE_TEXTS["words"]]}),
        ("/tokenize", {"prompt": LARGE_TEXTS["words"], "return_token_strs": True}),
        ("/detokenize", {"tokens": [7] * 262_144}),  # --max-tokenize-tokens
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_routes_accept_a_megabyte(shared_server: ServerProcess, path: str, body: dict[str, Any]) -> None:
    started_at = time.perf_counter()

    with check_health_meanwhile(shared_server), shared_server.client() as client:
        reply = client.post(path, json=body)

    assert reply.status_code == 200, reply.text[:500]
    assert time.perf_counter() - started_at < MAX_REQUEST_S


@pytest.mark.parametrize("element", first_of([b"[7]", b'"a"']))
def test_a_body_of_millions_of_tiny_elements_takes_little_time_and_memory(
    shared_server: ServerProcess, element: bytes
) -> None:
    body = b'{"input":[' + b",".join([element] * (60 * MEGABYTE // (len(element) + 1))) + b"]}"
    started_at, before = time.perf_counter(), peak_megabytes(shared_server)

    with check_health_meanwhile(shared_server), shared_server.client() as client:
        reply = client.post("/v1/embeddings", content=body, headers={"content-type": "application/json"})

    assert reply.status_code == 413 and "the body has" in reply.json()["message"]
    assert time.perf_counter() - started_at < MAX_REQUEST_S
    assert peak_megabytes(shared_server) - before < 600  # as Python objects, the elements take more than a gigabyte
    assert can_embed(shared_server)


def test_a_body_without_an_end_is_refused_at_the_limit(shared_server: ServerProcess) -> None:
    chunk = b"%x\r\n" % MEGABYTE + b" " * MEGABYTE + b"\r\n"
    before = peak_megabytes(shared_server)

    with socket.create_connection(("127.0.0.1", shared_server.port), TIMEOUT_S) as client:
        head = b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        client.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(68):
            client.sendall(chunk)
        reply = HTTPResponse(client)
        reply.begin()
        body = json.loads(reply.read())

    assert reply.status == 413 and f"more than {64 * 2**20} bytes" in body["message"]
    assert peak_megabytes(shared_server) - before < 300
    assert can_embed(shared_server)
