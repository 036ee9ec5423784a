"""Invalid bodies get 400 in the error format of each vendor's dialect."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.dialects import DIALECTS, VENDOR_DIALECTS
from cenote.api.dialects.dialect import Dialect, Route
from cenote.api.replies import encode_default_error
from tests.api.app_client import make_client
from tests.factories import LLMFactory
from tests.tiny import tiny_bert_classifier

ROOT = Path(__file__).parents[2]
JSON = {"content-type": "application/json"}
CASES = [(dialect, route) for dialect in VENDOR_DIALECTS for route in dialect.routes]
NAMES = [f"{dialect.name}-{index}" for index, (dialect, _) in enumerate(CASES)]


@pytest.fixture(scope="module")
def servers(llm: LLM, shared_llm: LLMFactory) -> list[tuple[LLM, TestClient]]:
    return [(each, make_client(each)) for each in (llm, shared_llm(tiny_bert_classifier))]


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


def test_the_documentation_names_the_dialects_with_error_bodies_of_their_own() -> None:
    text = " ".join((ROOT / "docs/routes.md").read_text().split())
    named = text.partition("Errors have one body, except on the routes of ")[2].partition(", which have their own")[0]

    assert {name.lower() for name in re.split(", | and ", named)} == {
        dialect.name for dialect in DIALECTS if dialect.encode_error is not encode_default_error
    }


LONG = "the city " * 300
TOO_LONG = [
    ("/v1/embeddings", {"input": LONG}, {"truncate_prompt_tokens": -1}),
    ("/pooling", {"input": LONG}, {"truncate_prompt_tokens": -1}),
    ("/score", {"text_1": LONG, "text_2": "a"}, {"truncate_prompt_tokens": -1}),
    ("/invocations", {"input": LONG}, {"truncate_prompt_tokens": -1}),
    ("/embed", {"inputs": LONG}, {"truncate": False}),
    ("/api/embed", {"model": "mini", "input": LONG}, {"truncate": False}),
    ("/v2/embed", {"texts": [LONG], "input_type": "search_query"}, {"truncate": "NONE"}),
    ("/v1/ranking", {"query": {"text": "a"}, "passages": [{"text": LONG}]}, {"truncate": "END"}),
    ("/v1/multimodalembeddings", {"inputs": [{"content": [{"type": "text", "text": LONG}]}]}, {"truncation": False}),
    (
        "/v1/publishers/google/models/mini:predict",
        {"instances": [{"content": LONG}]},
        {"parameters": {"autoTruncate": False}},
    ),
]


@pytest.mark.parametrize(("path", "body", "field"), TOO_LONG, ids=[path for path, *_ in TOO_LONG])
def test_the_error_for_a_long_text_names_the_field_that_the_client_has_for_it(
    path: str, body: dict[str, Any], field: dict[str, Any], llm: LLM
) -> None:
    client = make_client(llm)
    ((name, value),) = (field.get("parameters") or field).items()
    is_default = value in (False, "NONE")  # texts are cut unless the request says otherwise

    refused, answered = (
        client.post(path, json=body | fields) for fields in ((field, {}) if is_default else ({}, field))
    )

    setting = f"{name}={'false' if value is False else value}"
    assert f"{'Leave out' if is_default else 'Set'} {setting} to cut such inputs to" in refused.text
    assert answered.status_code == 200, answered.text


def test_the_error_for_a_long_text_names_the_option_of_the_server_where_clients_have_none(llm: LLM) -> None:
    refused = make_client(llm).post("/embedding", json={"content": LONG})
    answered = make_client(llm, auto_truncate=True).post("/embedding", json={"content": LONG})

    assert refused.json()["message"].startswith("A server cuts such inputs with --auto-truncate, and embeds long texts")
    assert answered.status_code == 200
