"""Mutated bodies never cause a server error, and mutated API keys and paths are never let in.

MUTATED_BODIES=100000 MUTATED_HEADERS=10000 runs as many as that, by hand.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from typing import Any

import pytest
from starlette.types import ASGIApp, Message

from cenote import LLM
from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.api.dialects import DIALECTS
from cenote.config.server import ServerConfig

NUM_BODIES = int(os.environ.get("MUTATED_BODIES", 1000))
NUM_HEADERS = int(os.environ.get("MUTATED_HEADERS", 1000))
ROUTES = [route for dialect in DIALECTS for route in dialect.routes]
PIECES = [b"null", b"-1", b"1e400", b"NaN", b"[]", b"{}", b'""', b'"\\ud800"', b"\xff", b"\x00", b"9" * 400, b"[" * 200]
PIECES += [b"0.1", b"true", b'"timeout":-1', b'"priority":-5', b'"encoding_format":"bytes"', b'"input":', b'"a"']
KEY = "correct-horse-battery"


async def send(app: ASGIApp, path: str, body: bytes = b"", headers: list[tuple[bytes, bytes]] | None = None) -> int:
    """Return the status of a request, sent without a client that would change it."""
    messages = iter([{"type": "http.request", "body": body}])
    statuses: list[int] = []

    def receive() -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        if (message := next(messages, None)) is not None:
            future.set_result(message)
        return future

    async def collect(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode("utf-8"), "query_string": b""}
    defaults = [(b"host", b"a"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await app({**scope, "headers": defaults + (headers or []), "client": None}, receive, collect)
    assert len(statuses) == 1
    return statuses[0]


def mutate(data: bytes, rng: random.Random, pieces: list[bytes]) -> bytes:
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.choice((0, 1, 1, 3, 10)))
        kind = rng.randrange(4)
        if kind == 0:
            data = data[:start] + data[end:]
        elif kind == 1:
            data = data[:start] + rng.choice(pieces) + data[end:]
        elif kind == 2:
            data = data[:start] + bytes([rng.randrange(256)]) + data[end:]
        else:
            data = data[:end] + data[start:end] * rng.randint(1, 3) + data[end:]
    return data


def make_app(llm: LLM, **settings: Any) -> ASGIApp:
    app_state = AppState(ServerConfig(disable_access_log=True, **settings))
    app_state.set_engine(llm.engine)
    return build_app(app_state)


@pytest.mark.timeout(3600)
async def test_mutated_bodies_are_answered_or_refused(llm: LLM) -> None:
    app, rng = make_app(llm), random.Random(1)

    counts: dict[int, int] = {}
    for _ in range(NUM_BODIES):
        route = rng.choice(ROUTES)
        body = mutate(json.dumps(route.example).encode(), rng, PIECES)
        status = await send(app, route.paths[0], body)
        assert status < 500, (route.paths[0], body)
        counts[status] = counts.get(status, 0) + 1
    assert counts[200] > 0.01 * NUM_BODIES and counts[400] > 0.1 * NUM_BODIES, counts


@pytest.mark.timeout(3600)
async def test_mutated_keys_and_paths_are_not_let_in(llm: LLM) -> None:
    app, rng = make_app(llm, api_key=(KEY,), admin_api_key=("root-key",)), random.Random(2)
    paths = ["/v1/embeddings", "//v1/embeddings", "/v1/embeddings/", "/health/../v1/embeddings", "/ping;/v1/embeddings"]
    paths += ["/metrics", "/version", "/v1/models", "/health/x", "/HEALTH", "/v1%2fembeddings", "/ping/../pooling"]
    names = [b"authorization", b"api-key", b"x-api-key", b"Authorization", b"proxy-authorization", b"cookie", b"x-key"]

    assert await send(app, "/v1/embeddings", b'{"input": "a"}', [(b"api-key", KEY.encode())]) == 200
    for _ in range(NUM_HEADERS):
        value = mutate(rng.choice((b"Bearer " + KEY.encode(), KEY.encode())), rng, [b" ", b",", b"Bearer ", b"\t"])
        name = rng.choice(names)
        is_valid = is_key(value) and name in (b"authorization", b"api-key", b"x-api-key")
        if not is_valid:
            path = rng.choice(paths)
            assert await send(app, path, b'{"input": "a"}', [(name, value)]) == 401, (path, name, value)


def is_key(value: bytes) -> bool:
    """Whether a header may be read as the key, with or without the scheme Bearer and spaces around it."""
    scheme, _, rest = value.strip().partition(b" ")
    return KEY.encode() in (value.strip(), rest.strip() if scheme.lower() == b"bearer" else value.strip())
