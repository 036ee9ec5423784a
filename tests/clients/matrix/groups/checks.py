"""Checks of client libraries: registration, reference answers, results as JSON lines.

Imported by the files of this folder, which run in environments with one group of clients each: standard library only.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import os
import signal
import socket
import struct
import time
import urllib.request
from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

SERVERS: dict[str, str] = json.loads(os.environ["CLIENT_SERVERS"])  # URLs by name
KEY = os.environ["CLIENT_KEY"]  # of the server with all models
ALL, EMBED, RERANK, SPARSE, CLASSIFY = (SERVERS[name] for name in ("all", "embed", "rerank", "sparse", "classify"))
MODEL, RERANKER, CLASSIFIER = "mini", "pairs", "classes"

TEXTS = ["a cenote is a natural pit", "the price of bread", "how deep is it?"]
QUERY = "who live in the old city?"
DOCUMENTS = ["the dog and the cat", "people live in the old city", "a red bird", "two big fish in the river"]
LONG_TEXT = "people live in the old city " * 100  # longer than every model here accepts
CHECK_TIMEOUT_S = 90
LOCAL_HOSTS = ("127.0.0.1", b"127.0.0.1", "localhost", b"localhost", None)


@dataclass(frozen=True)
class Check:
    client: str
    package: str  # empty for requests that are replayed without the client
    setting: str  # what must be set besides base URL, key and model
    client_bug: str  # why the client cannot work
    run: Callable[[], Any]


checks: list[Check] = []


def check(client: str, package: str, *, setting: str = "", client_bug: str = "") -> Callable[[Any], Any]:
    """Register a function that uses a client and raises if its answer is not that of the server."""

    def register(function: Callable[[], Any]) -> Callable[[], Any]:
        checks.append(Check(client, package, setting, client_bug, function))
        return function

    return register


def run_checks() -> None:
    """Run all checks and print one JSON line for each."""
    block_network()
    signal.signal(signal.SIGALRM, stop_check)
    for item in checks:
        started, error = time.perf_counter(), ""
        signal.alarm(CHECK_TIMEOUT_S)
        try:
            result = item.run()
            if inspect.isawaitable(result):
                asyncio.run(wait_for(result))
        except Exception as exception:
            error = " ".join(f"{type(exception).__name__}: {exception}".split())
        finally:
            signal.alarm(0)
        row = {
            "client": item.client,
            "package": item.package,
            "version": version(item.package) if item.package else "replayed",
        }
        row |= {"setting": item.setting, "client_bug": item.client_bug, "error": error[:600]}
        print("CHECK " + json.dumps(row | {"seconds": round(time.perf_counter() - started, 2)}), flush=True)


async def wait_for(result: Any) -> Any:
    return await result


def stop_check(*_: Any) -> None:
    raise TimeoutError(f"no answer after {CHECK_TIMEOUT_S} s")


def block_network() -> None:
    """Fail the resolution of other hosts: a client that ignores its base URL fails at once."""
    getaddrinfo = socket.getaddrinfo

    def resolve_local(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host not in LOCAL_HOSTS:
            raise socket.gaierror(f"{host} is not a local host")
        return getaddrinfo(host, *args, **kwargs)

    socket.getaddrinfo = resolve_local  # type: ignore[assignment]


def post(server: str, path: str, body: Any) -> Any:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(server + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def embed(texts: Sequence[str] = TEXTS, **fields: Any) -> list[list[float]]:
    """Return the vectors of /v1/embeddings."""
    data = post(ALL, "/v1/embeddings", {"model": MODEL, "input": list(texts), **fields})["data"]
    return [item["embedding"] for item in data]


def embed_as(dtype: str, texts: Sequence[str] = TEXTS) -> list[list[int]]:
    """Return the integers of /v2/embed."""
    body = {"model": MODEL, "texts": list(texts), "embedding_types": [dtype]}
    vectors: list[list[int]] = post(ALL, "/v2/embed", body)["embeddings"][dtype]
    return vectors


def rank(documents: Sequence[str] = DOCUMENTS, **fields: Any) -> list[tuple[int, float]]:
    """Return index and score of /rerank, best first."""
    body = {"model": RERANKER, "query": QUERY, "documents": list(documents), **fields}
    return [(item["index"], item["relevance_score"]) for item in post(ALL, "/rerank", body)["results"]]


def sparse(texts: Sequence[str] = TEXTS) -> list[dict[int, float]]:
    """Return the weights of /v1/sparse_embeddings by token id."""
    data = post(SPARSE, "/v1/sparse_embeddings", {"input": list(texts)})["data"]
    return [dict(zip(item["token_ids"], item["weights"], strict=True)) for item in data]


def classify(texts: Sequence[str] = TEXTS) -> list[dict[str, float]]:
    """Return the probabilities of /classify by label."""
    body = {"model": CLASSIFIER, "input": list(texts)}
    return [dict(zip(("good", "bad"), item["probs"], strict=True)) for item in post(ALL, "/classify", body)["data"]]


def decode_floats(text: str) -> list[float]:
    data = b64decode(text)
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def flatten(values: Any) -> Iterable[float]:
    if isinstance(values, int | float) or not hasattr(values, "__iter__"):
        yield float(values)
    else:
        for value in values:
            yield from flatten(value)


def same(actual: Any, expected: Any, tolerance: float = 1e-4) -> None:
    """Raise if two nested lists of numbers differ in size or by more than the tolerance."""
    left, right = list(flatten(actual)), list(flatten(expected))
    if len(left) != len(right):
        raise AssertionError(f"{len(left)} numbers, expected {len(right)}")
    worst = max((abs(one - other) for one, other in zip(left, right, strict=True)), default=0.0)
    if not worst <= tolerance:
        raise AssertionError(f"values differ by {worst:.4g}: {left[:4]}, expected {right[:4]}")


def equal(actual: Any, expected: Any) -> None:
    if actual != expected:
        raise AssertionError(f"got {actual!r}, expected {expected!r}")


def to_logit(probability: float) -> float:
    return math.log(probability / (1 - probability))
