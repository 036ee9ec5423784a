"""No request costs the server more than a small constant times its body, in the event loop or in memory.

Every route gets bodies in which a field, or two, are as large as can be. REQUESTS_PER_ROUTE=12 sends as many to each,
up to the limit of a body, by hand: that takes an hour.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from http.client import HTTPConnection
from typing import Any

import pytest

from cenote.api.dialects import DIALECTS
from cenote.api.dialects.dialect import Route
from cenote.api.supervisor.engine_launcher import LAUNCHER_MODULE
from tests.api.app_client import add_chat_template
from tests.tiny import tiny_bert, tiny_bert_classifier, tiny_bert_token_classifier, tiny_splade

from .large_requests import LargeRequest, choose, list_large_requests
from .live_poller import LivePoller
from .memory_limit import limit_memory
from .server_process import ServerProcess, children, command_line

ROUTES = [route for dialect in DIALECTS for route in dialect.routes]
REQUESTS_PER_ROUTE = int(os.environ.get("REQUESTS_PER_ROUTE", 0))
MEMORY_BYTES = 4 * 1024**3
MAX_LIVE_S = 0.25
MODELS = ("embedder", "reranker", "splade", "entities")
KILOBYTE, MEGABYTE = 1000, 1_000_000
SIZES = (250 * KILOBYTE, 4 * MEGABYTE, 60 * MEGABYTE)
# a template whose time grows with the variables of the request
TEMPLATE = "{% for tool in tools or [] %}{{ tool.name }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"

MESSAGES = [[{"role": "user", "content": "a"}]] * 64
# two fields, each of an ordinary size, whose product is not
ATTACKS: dict[str, tuple[str, dict[str, Any]]] = {
    "tokens of a character": ("/tokenize", {"inputs": "," * MEGABYTE}),
    "tokens of a byte": ("/tokenize", {"prompt": "\U0001f600," * (MEGABYTE // 3), "return_token_strs": True}),
    "token ids": ("/detokenize", {"tokens": [7] * (MEGABYTE // 3)}),
    "inputs and labels": ("/v1/classify", {"input": ["a"] * 1500, "labels": ["x" * 4000 + str(n) for n in range(256)]}),
    "chunks of a character": ("/v1/embeddings", {"input": "a " * MEGABYTE, "chunk_size": 1}),
    "documents and fields": (
        "/rerank",
        {"query": "a", "documents": [{"a": "b"}] * 2000, "rank_fields": ["a", *(f"f{n}" for n in range(20_000))]},
    ),
    "conversations and variables": (
        "/v1/embeddings",
        {"messages": MESSAGES, "chat_template_kwargs": {"tools": [{"name": ""}] * 60_000}},
    ),
    "contents": ("/v1beta/models/embedder:countTokens", {"contents": [{"parts": [{"text": "a"}]}] * 40_000}),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a model for every route, in limited memory."""
    folder = tmp_path_factory.mktemp("models")
    makers = {"embedder": tiny_bert, "reranker": tiny_bert_classifier, "splade": tiny_splade}
    for name, make in {**makers, "entities": tiny_bert_token_classifier}.items():
        (folder / name).mkdir()
        make(folder / name, **({"num_labels": 1} if name == "reranker" else {}))
    add_chat_template(folder / "embedder", TEMPLATE)
    table = folder / "models.yaml"
    table.write_text("\n".join(f"- {{name: {name}, source: {folder / name}}}" for name in MODELS))
    server = ServerProcess("--models", str(table), "--max-inflight-bytes", "1G").wait_until_ready()
    with limit_memory(list_processes(server.process.pid), MEMORY_BYTES):
        yield server
        assert server.stop() == 0


@pytest.fixture(scope="module")
def live(server: ServerProcess) -> Iterator[LivePoller]:
    with LivePoller(server) as live:
        yield live


def list_processes(pid: int) -> list[int]:
    return [pid, *(found for child in children(pid) for found in list_processes(child))]


def list_serving(server: ServerProcess) -> dict[int, str]:
    """Return the command lines of all processes but the launcher, which exits when it was not used for ten minutes."""
    commands = {pid: command_line(pid) for pid in list_processes(server.process.pid)}
    return {pid: command for pid, command in commands.items() if LAUNCHER_MODULE not in command}


def send(server: ServerProcess, path: str, body: bytes, timeout_ms: int, model: str = MODELS[0]) -> int | None:
    """Return the status of the answer, which is read to its end and dropped; None without an answer."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=120)
    headers = {"content-type": "application/json", "x-request-timeout-ms": str(timeout_ms), "x-model": model}
    try:
        connection.request("POST", path, body, headers)
        reply = connection.getresponse()
        while reply.read(MEGABYTE):
            pass
        return reply.status
    except (TimeoutError, OSError):
        return None
    finally:
        connection.close()


@cache
def find_model_of_path(server: ServerProcess, path: str, example: bytes) -> str:
    """Return the model that answers the example of a route."""
    statuses = {model: send(server, path, example, 20_000, model) for model in MODELS}
    return next((model for model, status in statuses.items() if status == 200), MODELS[0])


def find_model(server: ServerProcess, request: LargeRequest) -> str:
    return find_model_of_path(server, request.path, json.dumps(request.example).encode())


def find_problems(
    server: ServerProcess, live: LivePoller, requests: list[LargeRequest], num_bytes: int, timeout_ms: int
) -> list[str]:
    """Send the requests one after the other; return those that were not answered, and those that delayed others."""
    problems = []
    processes = list_serving(server)
    for request in requests:
        body = request.encode(num_bytes)
        model = find_model(server, request)
        live.take()
        status = send(server, request.path, body, timeout_ms, model)
        delay_s = live.take()
        if status is None or status == 500 or delay_s > MAX_LIVE_S:
            problems.append(f"{request.path} ({request.name}), {len(body)} bytes: {status}, {delay_s:.2f} s")
    if list_serving(server) != processes:
        problems.append(f"of {processes} there are {list_serving(server)}:\n{server.output[-4000:]}")
    return problems


def test_large_fields_of_every_route_delay_nobody(server: ServerProcess, live: LivePoller) -> None:
    requests = [request for route in ROUTES for request in choose(list_large_requests(route), 1)]

    assert find_problems(server, live, requests, 250 * KILOBYTE, timeout_ms=300) == []


@pytest.mark.parametrize("name", ATTACKS)
def test_a_product_of_two_fields_is_refused_before_it_is_computed(
    server: ServerProcess, live: LivePoller, name: str
) -> None:
    path, body = ATTACKS[name]
    raw = json.dumps(body).encode()
    live.take()

    status = send(server, path, raw, timeout_ms=20_000)
    delay_s = live.take()

    assert status in (400, 413, 422)
    assert delay_s <= MAX_LIVE_S


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("num_bytes", SIZES if REQUESTS_PER_ROUTE else SIZES[1:2])
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.paths[0])
def test_two_large_fields_of_a_route_delay_nobody(
    server: ServerProcess, live: LivePoller, route: Route, num_bytes: int
) -> None:
    requests = choose(list_large_requests(route), REQUESTS_PER_ROUTE or 1)

    assert find_problems(server, live, requests, num_bytes, timeout_ms=2000) == []
