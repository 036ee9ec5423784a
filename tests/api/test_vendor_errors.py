"""Invalid bodies get 400 in the error format of each vendor's dialect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.dialects import DIALECTS, VENDOR_DIALECTS
from cenote.api.dialects.dialect import Dialect, Route
from tests.api.app_client import load_llm, make_client
from tests.tiny import tiny_bert_classifier

JSON = {"content-type": "application/json"}
CASES = [(dialect, route) for dialect in VENDOR_DIALECTS for route in dialect.routes]
NAMES = [f"{dialect.name}-{index}" for index, (dialect, _) in enumerate(CASES)]


@pytest.fixture(scope="module")
def servers(llm: LLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[LLM, TestClient]]]:
    folder = tmp_path_factory.mktemp("classifier")
    tiny_bert_classifier(folder, num_labels=3)
    with load_llm(folder) as classifier:
        yield [(llm, make_client(llm)), (classifier, make_client(classifier))]


@pytest.mark.parametrize(("dialect", "route"), CASES, ids=NAMES)
def test_invalid_bodies_are_refused_in_the_format_of_the_dialect(
    servers: list[tuple[LLM, TestClient]], dialect: Dialect, route: Route
) -> None:
    client, path = next(
        (client, route.paths[0].replace("{model}", name))
        for (llm, client), name in zip(servers, ("mini", "tiny"), strict=True)
        if route.is_supported(llm.engine.model_info)
    )
    whole = json.dumps(route.example).encode()
    bodies: dict[str, bytes] = {
        "nothing": b"",
        "plain text": b"hello",
        "a part": whole[:-1],
        "two bodies": whole + whole,
        "UTF-16": whole.decode().encode("utf-16"),
        "nested": b'{"a":' + b"[" * 100_000,
        "a lone surrogate": whole[:-1] + rb', "something": "\ud800"}',
        "a list": b"[]",
        **{f"a wrong {name}": replace_value(route.example, name) for name in route.example},
    }

    for name, raw in bodies.items():
        reply = client.post(path, content=raw, headers=JSON)
        assert reply.status_code == 400, (name, reply.text[:300])
        body: Any = msgspec.json.decode(reply.content, type=dialect.error_type)
        assert body is not None and reply.headers["x-should-retry"] == "false"
    assert client.post(path, json=dict(route.example)).status_code == 200


def replace_value(example: Any, name: str) -> bytes:
    """Return the example with a value of another type in one field."""
    wrong: Any = {"not": "valid"} if not isinstance(example[name], dict) else 5
    return json.dumps({**example, name: wrong}).encode()


@pytest.mark.parametrize(
    "dialect", [dialect for dialect in DIALECTS if dialect.generation_paths], ids=lambda dialect: dialect.name
)
def test_routes_that_would_generate_text_say_what_there_is_instead(dialect: Dialect, llm: LLM) -> None:
    for path in dialect.generation_paths:
        reply = make_client(llm).post(path.replace("{model}", "org/model"), json={"messages": [], "stream": True})

        assert reply.status_code == 404
        body = msgspec.json.decode(reply.content, type=dialect.error_type)  # in the format of the vendor
        assert "Cenote generates no text" in str(body)
        assert "routes of this server: /detokenize, /pooling, /rerank, /score, /tokenize, /v1/embed" in str(body)
