"""Schema errors have the format of vLLM's server, which its clients search for pydantic's names and invalid values."""

from __future__ import annotations

import ast
from functools import partial
from itertools import islice, product
from typing import Any

import pytest
from starlette.testclient import TestClient

from cenote.config.pooler import PoolerConfig
from tests.api.app_client import assert_refused, load_llm, make_client
from tests.factories import LLMFactory
from tests.tiny import tiny_bert, tiny_cross_encoder

MESSAGES = [{"role": "user", "content": "a"}]
TRUNCATION_MESSAGE = (
    "truncate_prompt_tokens value is greater than max_model_len. Please request a smaller truncation size."
)


@pytest.fixture(scope="module")
def cross_encoder(shared_llm: LLMFactory) -> TestClient:
    return make_client(shared_llm(tiny_cross_encoder))


def read_error(reply: Any) -> dict[str, Any]:
    """Return the one error of a reply, parsed from the Python dict in its message."""
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["type"] == "Bad Request"
    header, line = error["message"].split("\n")
    assert header == "1 validation error:"
    assert line.startswith("  {")
    fields: dict[str, Any] = ast.literal_eval(line.strip())
    assert error["param"] == ".".join(map(str, fields["loc"]))
    return fields


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling", "/invocations"])
@pytest.mark.parametrize("inputs", [{"input": "a"}, {"messages": MESSAGES}, {"input": [MESSAGES]}])
@pytest.mark.parametrize("name", ["encoding_format", "embed_dtype", "endianness"])
def test_an_unknown_encoding_is_a_literal_error_with_the_value(
    client: TestClient, path: str, inputs: dict[str, Any], name: str
) -> None:
    error = read_error(client.post(path, json=inputs | {name: f"bad_{name}"}))

    assert error["type"] == "literal_error"
    assert error["loc"] == ("body", name)
    assert error["msg"].startswith(f"{name}: Invalid enum value 'bad_{name}'; expected one of: ")
    assert error["input"] == f"bad_{name}"


@pytest.mark.parametrize(
    ("body", "kind", "location", "value"),
    [
        ({}, "missing", ("input",), None),
        ({"input": 5}, "string_type", ("input",), 5),
        ({"input": ["a", 1.5]}, "string_type", ("input", 1), 1.5),
        ({"input": ["a", 7]}, "string_type", ("input", 1), 7),
        ({"input": [7, "a"]}, "int_type", ("input", 1), "a"),
        ({"messages": {"role": "user"}}, "list_type", ("messages",), {"role": "user"}),
        ({"messages": [[]]}, None, None, None),
        ({"input": "a", "encoding_format": 5}, "literal_error", ("encoding_format",), 5),
        ({"input": "a", "dimensions": "many"}, "int_parsing", ("dimensions",), "many"),
        ({"input": "a", "dimensions": [32]}, "int_type", ("dimensions",), [32]),
        ({"input": "a", "dimensions": 0}, "greater_than_equal", ("dimensions",), 0),
        ({"input": "a", "dimensions": 2**40}, "less_than_equal", ("dimensions",), 2**40),
        ({"input": "a", "normalize": "maybe"}, "bool_parsing", ("normalize",), "maybe"),
        ({"input": "a", "mm_processor_kwargs": 5}, "dict_type", ("mm_processor_kwargs",), 5),
        ([7], "dict_type", (), [7]),
    ],
)
def test_schema_errors_have_the_names_of_pydantic(
    client: TestClient, body: Any, kind: str | None, location: tuple[object, ...] | None, value: Any
) -> None:
    reply = client.post("/v1/embeddings", json=body)

    if kind is None:  # found after parsing: vLLM has plain messages for these, too
        assert reply.status_code == 400 and "validation error" not in reply.json()["error"]["message"]
        return
    error = read_error(reply)
    assert (error["type"], error["loc"], error.get("input")) == (kind, ("body", *location), value)


def test_a_missing_field_comes_with_the_object_that_lacks_it(cross_encoder: TestClient) -> None:
    error = read_error(cross_encoder.post("/rerank", json={"query": "a"}))

    assert error == {
        "type": "missing",
        "loc": ("body", "documents"),
        "msg": "documents is required",
        "input": {"query": "a"},
    }


def test_a_body_that_is_not_json_has_a_type_too(client: TestClient) -> None:
    reply = client.post("/v1/embeddings", content=b'{"input"', headers={"content-type": "application/json"})

    assert read_error(reply)["type"] == "json_invalid"


def test_a_long_value_is_left_out(client: TestClient) -> None:
    error = read_error(client.post("/v1/embeddings", json={"input": {"texts": "a" * 100_000}}))

    assert error.keys() == {"type", "loc", "msg"}
    error = read_error(client.post("/v1/embeddings", json={"input": ["a", {}], "mm_processor_kwargs": "a" * 100_000}))
    assert error["loc"] == ("body", "mm_processor_kwargs") and "input" not in error


@pytest.mark.parametrize(
    "path", ["/v1/embeddings", "/pooling", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"]
)
def test_a_truncation_length_above_the_limit_has_the_text_of_vllms_server(client: TestClient, path: str) -> None:
    body = (
        {"input": "a"} if path in ("/v1/embeddings", "/pooling") else {"queries": "a", "query": "a", "documents": ["b"]}
    )
    reply = client.post(path, json=body | {"truncate_prompt_tokens": 257})

    assert_refused(reply, TRUNCATION_MESSAGE, "truncate_prompt_tokens")
    assert reply.json()["error"]["message"] == TRUNCATION_MESSAGE
    assert reply.json()["error"]["type"] == "BadRequestError"


@pytest.mark.parametrize("path", ["/classify", "/score", "/rerank"])
def test_a_truncation_length_above_the_limit_of_a_cross_encoder(cross_encoder: TestClient, path: str) -> None:
    body = {"input": "a", "queries": "a", "query": "a", "documents": ["b"], "truncate_prompt_tokens": 67}

    assert cross_encoder.post(path, json=body).json()["error"]["message"] == TRUNCATION_MESSAGE


def test_a_truncation_length_above_max_embed_len_is_refused_with_that_number(tmp_path: Any) -> None:
    tiny_bert(tmp_path)
    config = PoolerConfig(enable_chunked_processing=True, max_embed_len=100)
    with load_llm(tmp_path, pooler_config=config) as llm:
        reply = make_client(llm).post("/v1/embeddings", json={"input": "a", "truncate_prompt_tokens": 101})

    assert_refused(reply, "100. Please request a smaller truncation size.", "truncate_prompt_tokens")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "a"}),
        ("/pooling", {"input": "a", "task": "token_embed"}),
        ("/classify", {"input": "a"}),
        ("/score", {"queries": "a", "documents": "b"}),
        ("/rerank", {"query": "a", "documents": ["b"]}),
    ],
)
@pytest.mark.parametrize("salt", ["a/b", "a@b", "a\\b", "a\0b", "a" * 129, "", "a" * 128])
def test_a_cache_salt_is_limited_as_in_vllm(
    client: TestClient, cross_encoder: TestClient, path: str, body: dict[str, Any], salt: str
) -> None:
    reply = (cross_encoder if path == "/classify" else client).post(path, json=body | {"cache_salt": salt})

    if salt == "a" * 128:
        assert reply.status_code == 200
        return
    message = "must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL."
    message = message if salt else "must be a non-empty string if provided."
    assert_refused(reply, f"Parameter 'cache_salt' {message}", "cache_salt")


def test_the_types_of_the_fields_are_resolved_once(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = partial(client.post, "/v1/embeddings", json={"input": "a", "dimensions": -1})
    error = read_error(refuse())
    monkeypatch.setattr("cenote.api.request_body.get_type_hints", None)  # it takes milliseconds

    assert read_error(refuse()) == error


def test_a_body_of_many_names_is_not_searched_for_a_missing_field(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = list[int]()

    def count(name: str, names: list[str], *arguments: Any) -> list[str]:
        counts.append(len(names))
        return []

    monkeypatch.setattr("cenote.api.field_names.get_close_matches", count)
    names = ["".join(letters) for letters in islice(product("qeruy", repeat=6), 10_000)]
    error = read_error(client.post("/rerank", json={"documents": ["a"], **dict.fromkeys(names, "a")}))

    assert error["type"] == "missing"
    assert counts and max(counts) <= 256
