"""Large requests to a real server: they work or are refused, in bounded time, and nobody else notices."""

from __future__ import annotations

import json
import random
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.api.app_client import decode_base64

from .server_process import TIMEOUT_S, ServerProcess

MEGABYTE = 1_000_000
# loose, because other programs may have the cores; what is meant to be prevented takes minutes
PROMPT_S, BOUNDED_S = 5.0, 40.0

WORDS = "the water in the cave is clear and cold "
ONE_WORD = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=MEGABYTE))
HUGE = {
    "words": WORDS * (MEGABYTE // len(WORDS)),
    "one word": ONE_WORD,
    "one letter": "a" * MEGABYTE,
    "no spaces": "a.b," * (MEGABYTE // 4),
    "Chinese": "水" * (MEGABYTE // 3),
    "spaces": " " * MEGABYTE,
}


@contextmanager
def others_are_served(served: ServerProcess) -> Iterator[None]:
    """Meanwhile somebody asks for /health, again and again, and never waits for long."""
    begun, over, waits = threading.Event(), threading.Event(), []

    def ask() -> None:
        with served.client() as client:
            while not over.is_set():
                began = time.perf_counter()
                assert client.get("/health").status_code == 200
                waits.append(time.perf_counter() - began)
                begun.set()
                over.wait(0.01)

    thread = threading.Thread(target=ask)
    thread.start()
    assert begun.wait(TIMEOUT_S)
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert max(waits) < PROMPT_S


def embed(served: ServerProcess, **body: Any) -> httpx.Response:
    """Asks while others do, and for no longer than is bearable."""
    began = time.perf_counter()
    with others_are_served(served), served.client() as client:
        reply = client.post("/v1/embeddings", json=body)
    assert time.perf_counter() - began < BOUNDED_S
    return reply


def assert_works(served: ServerProcess) -> bool:
    with served.client() as client:
        return client.post("/v1/embeddings", json={"input": "hello"}).status_code == 200


def test_2048_texts_are_answered_each_with_its_own_vector(served: ServerProcess) -> None:
    texts = [f"number {number}" for number in range(2048)]

    with others_are_served(served), served.client() as client:
        reply = client.post("/v1/embeddings", json={"input": texts, "encoding_format": "base64"}).json()
        places = [0, 1, 777, 2047]
        alone = [client.post("/v1/embeddings", json={"input": texts[place]}).json()["data"][0] for place in places]

    assert [item["index"] for item in reply["data"]] == list(range(2048))
    vectors = np.stack([decode_base64(item["embedding"]) for item in reply["data"]])
    assert vectors.shape == (2048, 384)
    near = vectors @ np.array([item["embedding"] for item in alone]).T
    assert near.argmax(axis=0).tolist() == places
    assert near.max(axis=0).min() > 0.999  # bfloat16 where the processor has it


@pytest.mark.parametrize("kind", HUGE)
def test_a_megabyte_in_one_input_is_refused_with_the_numbers(served: ServerProcess, kind: str) -> None:
    reply = embed(served, input=["a", HUGE[kind]])

    error = reply.json()["error"]
    assert reply.status_code == 400 and error["index"] == 1
    assert "maximum context length is 256 tokens" in error["message"]
    assert f"your prompt contains {len(HUGE[kind])} characters" in error["message"]


@pytest.mark.parametrize("kind", HUGE)
@pytest.mark.parametrize("side", ["left", None])
def test_a_megabyte_in_one_input_is_cut_where_asked(served: ServerProcess, kind: str, side: str | None) -> None:
    reply = embed(served, input=HUGE[kind], truncate_prompt_tokens=-1, truncation_side=side, return_token_counts=True)

    assert reply.status_code == 200, reply.text[:500]
    counts = reply.json()["data"][0]["token_counts"]
    if kind in ("words", "no spaces", "Chinese"):
        assert reply.headers["x-truncated-inputs"] == "1"
        assert counts["used"] == 256 and counts["at_least"] and counts["truncated"] == counts["given"] - 256 > 0
    else:  # what the vocabulary does not know, and nothing at all, are few tokens whatever their length
        assert counts["used"] == counts["given"] < 256


@pytest.mark.parametrize("kind", ["words", "one letter"])
def test_sixty_megabytes_in_one_input_take_no_minutes(served: ServerProcess, kind: str) -> None:
    text = HUGE[kind] * 60

    refused = embed(served, input=text)
    cut = embed(served, input=text, truncate_prompt_tokens=-1, return_token_counts=True)

    assert refused.status_code == 400 and f"{len(text)} characters" in refused.json()["message"]
    assert cut.status_code == 200 and cut.headers["x-truncated-inputs"] == "1"
    assert cut.json()["data"][0]["token_counts"]["at_least"]
    assert assert_works(served)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/rerank", {"query": "a", "documents": [ONE_WORD, HUGE["words"]]}),
        ("/rerank", {"query": "a", "documents": [HUGE["words"]], "max_tokens_per_doc": 100}),
        ("/v2/embed", {"texts": [HUGE["words"]]}),
        ("/tokenize", {"prompt": HUGE["words"], "return_token_strs": True}),
        ("/detokenize", {"tokens": [7] * MEGABYTE}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_routes_read_a_megabyte_as_well(served: ServerProcess, path: str, body: dict[str, Any]) -> None:
    began = time.perf_counter()

    with others_are_served(served), served.client() as client:
        reply = client.post(path, json=body)

    assert reply.status_code == 200, reply.text[:500]
    assert time.perf_counter() - began < BOUNDED_S


def peak_megabytes(served: ServerProcess) -> int:
    """The most memory that the server has had so far."""
    status = Path(f"/proc/{served.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) // 1024


@pytest.mark.parametrize("piece", [b"[7]", b'"a"'])
def test_a_body_of_millions_of_tiny_parts_takes_neither_time_nor_memory(served: ServerProcess, piece: bytes) -> None:
    body = b'{"input":[' + b",".join([piece] * (60 * MEGABYTE // (len(piece) + 1))) + b"]}"
    began, before = time.perf_counter(), peak_megabytes(served)

    with others_are_served(served), served.client() as client:
        reply = client.post("/v1/embeddings", content=body, headers={"content-type": "application/json"})

    assert reply.status_code == 413 and "a body has at most" in reply.json()["message"]
    assert time.perf_counter() - began < BOUNDED_S
    assert peak_megabytes(served) - before < 600  # the parts would have more than a gigabyte
    assert assert_works(served)


# bodies that are not as long as they say


def connected(served: ServerProcess, *headers: str) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", served.port), TIMEOUT_S)
    head = ("POST /v1/embeddings HTTP/1.1", "Host: a", "Content-Type: application/json", *headers)
    client.sendall("".join(f"{line}\r\n" for line in (*head, "")).encode())
    return client


def reply_to(client: socket.socket) -> tuple[int, Any]:
    reply = b""
    while b"\r\n\r\n" not in reply or len(reply.partition(b"\r\n\r\n")[2]) < length_in(reply):
        part = client.recv(65536)
        assert part, reply
        reply += part
    return int(reply.split()[1]), json.loads(reply.partition(b"\r\n\r\n")[2])


def length_in(reply: bytes) -> int:
    found = re.search(rb"content-length: (\d+)", reply)
    assert found is not None, reply
    return int(found[1])


def test_a_body_that_says_it_is_too_long_is_refused_before_it_comes(served: ServerProcess) -> None:
    with connected(served, f"Content-Length: {2**30}") as client:
        status, body = reply_to(client)

    assert status == 413
    assert f"at most {64 * 2**20} bytes, this one has {2**30}" in body["message"]
    assert assert_works(served)


def test_a_body_without_an_end_is_refused_at_the_limit(served: ServerProcess) -> None:
    chunk = b"%x\r\n" % MEGABYTE + b" " * MEGABYTE + b"\r\n"
    before = peak_megabytes(served)

    with connected(served, "Transfer-Encoding: chunked") as client:
        for _ in range(68):
            client.sendall(chunk)
        status, body = reply_to(client)

    assert status == 413 and "this one has more" in body["message"]
    assert peak_megabytes(served) - before < 300
    assert assert_works(served)


def test_a_body_shorter_than_its_content_length_does_not_affect_others(served: ServerProcess) -> None:
    with connected(served, "Content-Length: 1000") as client:
        client.sendall(b'{"input": "a"}')
        client.shutdown(socket.SHUT_WR)
        client.recv(65536)

    assert assert_works(served)


def test_a_body_longer_than_its_content_length_does_not_affect_others(served: ServerProcess) -> None:
    with connected(served, "Content-Length: 14") as client:
        client.sendall(b'{"input": "a"} and more of it\r\n\r\n')
        while client.recv(65536):  # whatever comes ends: the rest is no request
            pass

    assert assert_works(served)
