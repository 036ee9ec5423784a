"""Invalid bodies are refused with an error that names the field, and do not affect later requests."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api import request_body as body_module
from cenote.api.dialects import DIALECTS, SINGLE_TASK_DIALECTS, VENDOR_DIALECTS
from cenote.api.dialects.dialect import Route
from cenote.api.replies import encode_default_error
from cenote.api.request_body import check_raw_body, check_utf8, count_chars, parse_body, strip_strings
from cenote.errors import BodyTooLarge, InvalidBody
from tests.api.app_client import make_client, null_fields, save_chat_cross_encoder
from tests.factories import LLMFactory
from tests.suite import first_of
from tests.tiny import tiny_bert_token_classifier, tiny_bge_m3

# test_vendor_errors.py tests the others, whose errors may have other formats
ROUTES = {
    route.paths[0]: route
    for dialect in DIALECTS
    for route in dialect.routes
    if dialect not in VENDOR_DIALECTS and dialect.encode_error is encode_default_error and route.body_keys is None
}
TYPED_ROUTES = {route.paths[0]: route for dialect in SINGLE_TASK_DIALECTS for route in dialect.routes}
JSON = {"content-type": "application/json"}
DEEP = 100_000
ERROR_FIELDS = {"error", "object", "message", "type", "param", "code", "detail"}

Clients = dict[str, TestClient]


@pytest.fixture(scope="module")
def clients(llm: LLM, shared_llm: LLMFactory) -> Clients:
    """Return for every route a client of a model that supports it."""
    makers = (save_chat_cross_encoder, tiny_bge_m3, tiny_bert_token_classifier)
    servers = [make_client(each) for each in (llm, *map(shared_llm, makers))]
    return {
        path: next(server for server in servers if "does not support" not in server.post(path, json={}).text)
        for path in ROUTES
    }


@pytest.fixture(scope="module")
def embeddings(clients: Clients) -> TestClient:
    return clients["/v1/embeddings"]


def assert_refused(reply: Any, status: int = 400) -> dict[str, Any]:
    """Check the error body in the formats of all clients; return its nested `error`."""
    assert reply.status_code == status, reply.text[:500]
    body = reply.json()
    assert body.keys() == ERROR_FIELDS
    error: dict[str, Any] = body["error"]
    assert error["message"] == body["message"] == body["detail"] and body["object"] == "error"
    assert error["code"] == body["code"] == status
    assert (error["type"], error["param"]) == (body["type"], body["param"])
    assert reply.headers["x-should-retry"] == "false" and reply.headers["x-request-id"]
    return error


def assert_works(client: TestClient, route: Route) -> None:
    reply = client.post(route.paths[0], json=route.example)
    assert reply.status_code == 200, reply.text


def with_field(example: Any, value: bytes) -> bytes:
    """Return the example with one more field whose value is this JSON."""
    return json.dumps(example).encode()[:-1] + b', "something": ' + value + b"}"


@pytest.mark.parametrize("path", TYPED_ROUTES)
def test_every_optional_field_may_be_null(clients: Clients, path: str) -> None:
    route = TYPED_ROUTES[path]
    replies = [
        clients[path].post(path, json=body | route.example).json() for body in ({}, null_fields(route.body_type))
    ]

    for key in replies[0].keys() - {"id", "created"}:
        assert replies[0][key] == replies[1][key]


def share(path: str, rows: Sequence[Any], start: int = 0) -> Sequence[Any]:
    """Return all rows for the first route, and every third for each other: all have one reader of bodies."""
    number = list(ROUTES | TYPED_ROUTES).index(path)
    return rows[(number + start) % 3 :: 3] if number else rows


@pytest.mark.parametrize("path", ROUTES)
def test_invalid_json_is_refused(clients: Clients, path: str) -> None:
    example = ROUTES[path].example
    whole = json.dumps(example).encode()
    bodies = {
        "nothing": b"",
        "spaces": b" \n ",
        "plain text": b"hello",
        "a form": b"input=hello&model=mini",
        "Python": str(dict(example)).encode(),
        "a comment": b"/* hello */" + whole,
        "a comma too many": whole[:-1] + b",}",
        "two bodies": whole + whole,
        "trailing text": whole + b" x",
        "NaN": with_field(example, b"NaN"),
        "infinity": with_field(example, b"Infinity"),
        "minus infinity": with_field(example, b"-Infinity"),
        "an incomplete number": with_field(example, b"1e"),
        "a leading zero": with_field(example, b"01"),
        "an unknown literal": with_field(example, b"nil"),
        "an incomplete escape": with_field(example, rb'"\u00"'),
        "an unknown escape": with_field(example, rb'"\x41"'),
        "a raw line end": with_field(example, b'"a\nb"'),
        "a raw NUL": with_field(example, b'"a\0b"'),
        "a NUL at the end": whole + b"\0",
        "UTF-16 without a byte order mark": whole.decode().encode("utf-16-le"),
        "UTF-32": whole.decode().encode("utf-32"),
    }

    for name, raw in share(path, list(bodies.items())):
        error = assert_refused(clients[path].post(path, content=raw, headers=JSON))
        assert error["param"] == "body", name
        assert "not valid JSON" in error["message"] or "not UTF-8" in error["message"], name
    assert_works(clients[path], ROUTES[path])


@pytest.mark.parametrize("path", ROUTES)
def test_a_body_truncated_anywhere_is_refused(clients: Clients, path: str) -> None:
    whole = json.dumps(ROUTES[path].example).encode()

    for end in share(path, range(len(whole))):
        error = assert_refused(clients[path].post(path, content=whole[:end], headers=JSON))
        assert error["param"] == "body" and "truncated" in error["message"]
    assert_works(clients[path], ROUTES[path])


@pytest.mark.parametrize("path", ROUTES)
def test_a_body_must_be_an_object(clients: Clients, path: str) -> None:
    for raw, type_name in ((b"[]", "array"), (b'"a"', "str"), (b"7", "int"), (b"null", "null"), (b"true", "bool")):
        error = assert_refused(clients[path].post(path, content=raw, headers=JSON))
        assert error["param"] == "body" and f"'msg': 'body: expected object, got {type_name}" in error["message"]


@pytest.mark.parametrize("path", ROUTES)
def test_a_body_nested_too_deeply_is_refused(clients: Clients, path: str) -> None:
    example = ROUTES[path].example
    lists, objects = b"[" * DEEP + b"]" * DEEP, b'{"a":' * DEEP + b"1" + b"}" * DEEP
    values = (lists, objects, lists[:DEEP])
    for raw in share(path, (*values, *(with_field(example, value) for value in values))):
        error = assert_refused(clients[path].post(path, content=raw, headers=JSON))
        assert error["param"] == "body"
    for name in share(path, ("chat_template_kwargs", "messages", "data", "documents", "input", "tools")):
        raw = json.dumps(example).encode()[:-1] + b', "%s": ' % name.encode() + objects + b"}"
        assert_refused(clients[path].post(path, content=raw, headers=JSON))
    assert_works(clients[path], ROUTES[path])


@pytest.mark.parametrize("depth", [100, 900])
def test_a_deeply_nested_body_that_parses_causes_no_internal_error(clients: Clients, depth: int) -> None:
    deep: Any = "x"
    for _ in range(depth):
        deep = {"a": deep}
    message = {"role": "user", "content": "a", "tool_calls": [deep]}
    for path, fields in (
        ("/rerank", {"query": "a", "documents": [{"text": "a", "more": deep}]}),
        ("/rerank", {"query": "a", "documents": [deep], "rank_fields": ["a"]}),
        ("/classify", {"messages": [message], "chat_template_kwargs": deep}),
        ("/tokenize", {"messages": [message], "tools": [deep]}),
    ):
        reply = clients[path].post(path, json=ROUTES[path].example | fields)
        assert reply.status_code in (200, 400), reply.text[:500]
        assert_works(clients[path], ROUTES[path])


@pytest.mark.parametrize("path", ROUTES)
def test_a_lone_surrogate_is_refused(clients: Clients, path: str) -> None:
    example = ROUTES[path].example
    surrogates = (rb"\ud800", rb"a\udc00b", rb"\ude00\ud83d", rb"\uD83Dx", rb"\ud800A", rb"\ud83d\ud83d\ude00")
    for surrogate in share(path, surrogates):
        for raw in (
            with_field(example, b'"%s"' % surrogate),
            b'{"%s": 1, ' % surrogate + json.dumps(example).encode()[1:],
        ):
            error = assert_refused(clients[path].post(path, content=raw, headers=JSON))
            assert "a string contains a lone surrogate" in error["message"], raw
    whole = with_field(example, rb'"\ud83d\ude00 \\ud800"')
    assert clients[path].post(path, content=whole, headers=JSON).status_code == 200
    assert "truncated" in assert_refused(clients[path].post(path, content=whole[:-3], headers=JSON))["message"]


@pytest.mark.parametrize("path", ROUTES)
def test_a_body_must_be_valid_utf_8(clients: Clients, path: str) -> None:
    example = ROUTES[path].example
    whole = json.dumps(example).encode()
    for invalid in share(path, (b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\x80", b"\xe2\x82")):
        raw = with_field(example, b'"a' + invalid + b'"')
        error = assert_refused(clients[path].post(path, content=raw, headers=JSON))
        assert "'msg': 'the body is not UTF-8: " in error["message"]
        assert f" at byte {raw.index(invalid)}'" in error["message"]
    for raw in (whole.decode().encode("utf-16"), b"\xff\xfe" + whole):
        assert "not UTF-8" in assert_refused(clients[path].post(path, content=raw, headers=JSON))["message"]
    error = assert_refused(clients[path].post(path, content=b"\xef\xbb\xbf" + whole, headers=JSON))
    assert "byte order mark" in error["message"]
    assert_works(clients[path], ROUTES[path])


def accepted_types(schema: dict[str, Any]) -> set[str]:
    """Return the JSON types that a field accepts."""
    if "anyOf" in schema:
        return set().union(*map(accepted_types, schema["anyOf"]))
    if "$ref" in schema:
        return {"object"}
    return {schema["type"]} if "type" in schema else set() if "enum" in schema else set(VALUES)


# one value of each JSON type; the string is neither an enum value nor a number
VALUES: dict[str, Any] = {
    "string": "no such word",
    "number": 1.5,
    "integer": 7,
    "boolean": True,
    "array": [],
    "object": {},
}


@pytest.mark.parametrize("path", TYPED_ROUTES)
def test_a_field_of_the_wrong_type_is_named(clients: Clients, path: str) -> None:
    route, client = TYPED_ROUTES[path], clients[path]
    lenient = getattr(route.body_type, "lenient", False)
    num_tried = 0
    for number, field in enumerate(msgspec.structs.fields(route.body_type)):
        name = field.encode_name
        schema = msgspec.json.schema(field.type)
        types = accepted_types(schema)
        accepted = types | ({"integer"} if "number" in types or ("boolean" in types and lenient) else set())
        for type_name in share(path, sorted(VALUES.keys() - accepted), number):
            error = assert_refused(client.post(path, json=route.example | {name: VALUES[type_name]}))
            assert error["param"] == f"body.{name}", (name, type_name)
            assert f"{name}: " in error["message"].splitlines()[1], (name, type_name)
            num_tried += 1
        if "array" in types and types != set(VALUES):
            error = assert_refused(client.post(path, json=route.example | {name: [1.5]}))
            assert error["param"] == f"body.{name}.0", name
    assert num_tried >= 5
    assert_works(client, route)


@pytest.mark.parametrize("path", TYPED_ROUTES)
def test_a_number_out_of_range_is_refused_in_a_numeric_field(clients: Clients, path: str) -> None:
    route, client = TYPED_ROUTES[path], clients[path]
    numbers = (b"9" * 6000, b"-" + b"9" * 6000, b"1e400", b"-1e400", str(2**70).encode(), str(2**63).encode())
    for number, field in enumerate(msgspec.structs.fields(route.body_type)):
        if "integer" not in accepted_types(msgspec.json.schema(field.type)):
            continue
        for digits in share(path, numbers, number):
            name = field.encode_name.encode()
            raw = json.dumps(route.example).encode()[:-1] + b', "%s": %s}' % (name, digits)
            error = assert_refused(client.post(path, content=raw, headers=JSON))
            assert error["param"] == f"body.{field.encode_name}", digits[:10]
    for digits in (b"9" * 6000, b"1e400", b"-0"):  # valid JSON in an unknown field
        assert client.post(path, content=with_field(route.example, digits), headers=JSON).status_code == 200


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling", "/classify", "/invocations"])
def test_token_ids_outside_the_vocabulary_are_refused(clients: Clients, path: str) -> None:
    client, size = clients[path], 160 if path == "/classify" else 30_522

    def post(ids_json: str) -> Any:
        return client.post(path, content=f'{{"input": {ids_json}}}', headers=JSON)

    for ids_json in (
        "[-1]",
        "[[7], [-1]]",
        f"[{size}]",
        f"[[{size}]]",
        "[9223372036854775807]",
        "[-9223372036854775808]",
        "[1180591620717411303424]",
        "[[7, -1180591620717411303424]]",
    ):
        error = assert_refused(post(ids_json))
        assert error["param"] == "input" and f"is out of vocabulary: ids go from 0 to {size - 1}" in error["message"]
    for ids_json, path_in_input in (
        ("[1.0]", "0"), ("[7, 7.5]", "1"),
        ("[true]", "0"), ("[7, false]", "1"), ("[null]", "0"), ("[7, null]", "1"), ("[1e2]", "0"), ("[1e400]", "0"),
        ("[-0.0]", "0"), ("[7, \"a\"]", "1"), ("[\"a\", 7]", "1"), ("[[7], 7]", "1"), ("[7, [7]]", "1"),
        ("[[7], \"a\"]", "1"), ("[[[7]]]", "0.0"), ("[{}, 7]", "1"), ("[[7, {}]]", "0.1"), ("[[{}, 7]]", "0.1"),
    ):  # fmt: skip
        error = assert_refused(post(ids_json))
        assert error["param"] == f"body.input.{path_in_input}", ids_json
        assert f"input.{path_in_input}: " in error["message"]
    assert post("[-0]").status_code == 200
    assert post(f"[{size - 1}]").status_code == 200


def test_token_ids_to_detokenize_outside_the_vocabulary_are_refused(clients: Clients) -> None:
    def post(ids_json: str) -> Any:
        return clients["/detokenize"].post("/detokenize", content=f'{{"tokens": {ids_json}}}', headers=JSON)

    for ids_json in ("[-1]", "[1.0]", "[true]", '["a"]', "[[7]]", "[null]", "[1180591620717411303424]"):
        assert assert_refused(post(ids_json))["param"] == "body.tokens.0", ids_json
    for ids_json in ("[30522]", "[9223372036854775807]"):
        assert "out of vocabulary: ids go from 0 to 30521" in assert_refused(post(ids_json))["message"]
    assert post("[30521]").status_code == post("[]").status_code == 200


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling", "/classify", "/invocations"])
def test_an_empty_text_is_accepted_and_an_empty_list_is_refused(clients: Clients, path: str) -> None:
    for value in ("", [""], " ", "\0", ["", " "]):
        reply = clients[path].post(path, json={"input": value})
        assert reply.status_code == 200, reply.text
        assert len(reply.json()["data"]) == (len(value) if isinstance(value, list) else 1)
        assert reply.json()["usage"]["prompt_tokens"] == 2 * len(reply.json()["data"])  # the special tokens
    for value, param in (([], "input"), ([[]], "input.0"), ([[7], []], "input.1")):
        assert assert_refused(clients[path].post(path, json={"input": value}))["param"] == param
    assert_refused(clients[path].post(path, json={}))
    assert_refused(clients[path].post(path, json={"messages": []}))


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/rerank", {"query": "a", "documents": []}, "documents is empty; expected at least one document"),
        ("/v2/rerank", {"query": "a", "documents": []}, "documents is empty; expected at least one document"),
        ("/rerank", {"query": {}, "documents": ["a"]}, "query: expected a text"),
        ("/rerank", {"query": "a", "documents": ["a", {}]}, "documents.1: expected a text"),
        ("/rerank", {"query": "a", "documents": [{"text": 5}]}, "documents.0: expected a text"),
        ("/rerank", {"documents": ["a"]}, "query is required"),
        ("/rerank", {"query": "a"}, "documents is required"),
        ("/score", {"text_1": [], "text_2": ["a"]}, "At least one text element must be given"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "1:1, 1:N or N:N; got 2:3"),
        ("/score", {"text_1": "a"}, "text_2 is required with text_1"),
        ("/score", {"queries": [{"content": [{"type": "text"}]}], "documents": "a"}, "queries.0.content.0.text"),
        ("/v2/embed", {"texts": []}, "Exactly one of texts, images, or inputs"),
        ("/v2/embed", {"texts": ["a"], "inputs": [{"content": []}]}, "Exactly one of texts, images, or inputs"),
        ("/v2/embed", {"inputs": [{"content": []}]}, "inputs.0.content: expected at least one part"),
        ("/v2/embed", {"inputs": [{"content": [{"type": "text"}]}]}, "requires text"),
        ("/v2/embed", {"inputs": [{"content": [{"type": "sound"}]}]}, "inputs.0.content.0.type: "),
        ("/v2/embed", {"inputs": [{}]}, "content is required"),
        ("/v2/embed", {"texts": ["a"], "embedding_types": ["float", "int4"]}, "embedding_types.1: "),
        ("/tokenize", {}, "prompt is required"),
        (
            "/tokenize",
            {"prompt": "a", "messages": [{"role": "user", "content": "a"}]},
            "prompt and messages are mutually exclusive",
        ),
        ("/tokenize", {"messages": []}, "expected at least one message"),
        ("/tokenize", {"messages": [{"role": "user", "content": "a"}]}, "messages need a chat template"),
        ("/detokenize", {}, "tokens is required"),
        ("/invocations", {}, "Cannot find suitable handler"),
        ("/invocations", {"input": "a", "task": 5}, "task: expected str"),
        ("/invocations", {"input": "a", "task": {"a": []}}, "task: expected str"),
        ("/pooling", {"input": "a", "task": "dance"}, "Supported tasks"),
        ("/pooling", {"data": {"a": 1}}, "plugin"),
        ("/classify", {"messages": [{}]}, "messages[0].role"),
        ("/classify", {"messages": [[{"role": "user", "content": "a"}], []]}, "a prompt must not be an empty list"),
        ("/classify", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ("/classify", {"input": "a", "chat_template_kwargs": {"chat_template": "x"}}, None),
        ("/classify", {"messages": [{"role": "user"}], "chat_template": "{{ x"}, "--trust-request-chat-template"),
    ],
)
def test_a_missing_or_invalid_field_is_named(clients: Clients, path: str, body: Any, words: str | None) -> None:
    reply = clients[path].post(path, json=body)

    if words is None:
        assert reply.status_code == 200, reply.text
    else:
        assert words in assert_refused(reply)["message"]
    assert_works(clients[path], ROUTES[path])


@pytest.mark.parametrize(
    ("path", "field", "item", "other"),
    [
        ("/v1/embeddings", "input", "a", {}),
        ("/v1/embeddings", "input", [7], {}),
        ("/v1/embeddings", "messages", [{"role": "user", "content": "a"}], {}),
        ("/v1/embeddings", "messages", {"role": "user", "content": "a"}, {}),
        ("/tokenize", "messages", {"role": "user", "content": "a"}, {"prompt": None}),
        ("/pooling", "input", [7], {}),
        ("/classify", "input", "a", {}),
        ("/rerank", "documents", "a", {"query": "a"}),
        ("/rerank", "documents", {"text": "a"}, {"query": "a"}),
        ("/v2/rerank", "documents", "a", {"query": "a"}),
        ("/score", "documents", "a", {"queries": "a"}),
        ("/score", "text_1", {"text": "a"}, {"text_2": "a"}),
        ("/v2/embed", "texts", "a", {}),
        ("/v2/embed", "inputs", {"content": [{"type": "text", "text": "a"}]}, {}),
        ("/invocations", "input", "a", {}),
    ],
)
def test_a_request_with_more_than_2048_items_is_refused(
    clients: Clients, path: str, field: str, item: Any, other: dict[str, Any]
) -> None:
    for count in (2049, 40_000):
        error = assert_refused(clients[path].post(path, json={field: [item] * count} | other))
        assert error["param"] == field
        assert f"{field} has {count} items, limit 2048 per request" in error["message"]
    assert_works(clients[path], ROUTES[path])


def test_2048_items_are_accepted(clients: Clients) -> None:
    reply = clients["/v2/rerank"].post("/v2/rerank", json={"query": "a", "documents": ["a"] * 2048, "top_n": 1})
    assert reply.status_code == 200, reply.text[:500]

    reply = clients["/v1/embeddings"].post("/v1/embeddings", json={"input": [[7]] * 2048, "encoding_format": "base64"})
    assert len(reply.json()["data"]) == 2048


@pytest.mark.parametrize("path", ROUTES)
def test_only_json_content_types_are_accepted(clients: Clients, path: str) -> None:
    raw = json.dumps(ROUTES[path].example).encode()

    def post(content_type: str | None, **extra_headers: str) -> Any:
        headers = extra_headers if content_type is None else {"content-type": content_type, **extra_headers}
        return clients[path].post(path, content=raw, headers=headers)

    for content_type in share(path, (
        "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/json",
        "application/jsonp", "application/json-seq", "application/octet-stream", "*/*", "json", "application/x+json x",
    )):  # fmt: skip
        assert "Only 'application/json' is allowed" in assert_refused(post(content_type))["message"], content_type
    assert post(None).status_code == 200
    assert "Only 'application/json' is allowed" in assert_refused(post(None, origin="http://other"))["message"]
    for charset in ("utf-16", '"utf-16"', "latin-1", "UTF-7"):
        error = assert_refused(post(f"application/json; charset={charset}"))
        assert f"must be UTF-8, got charset {charset.strip(chr(34))}" in error["message"]
    for valid in share(path, (
        "application/json", "Application/JSON", "application/json; charset=utf-8", 'application/json;charset="UTF-8"',
        "application/vnd.x+json", "application/vnd.api.v1+json; charset=utf8", "application/json; profile=a",
    )):  # fmt: skip
        assert post(valid).status_code == 200, valid
    for encoding in ("gzip", "br", "deflate", "x-y, gzip"):
        error = assert_refused(post("application/json", **{"content-encoding": encoding}))
        assert repr(encoding) in error["message"]
    compressed = clients[path].post(path, content=gzip.compress(raw), headers=JSON | {"content-encoding": "gzip"})
    assert_refused(compressed)
    assert post("application/json", **{"content-encoding": "identity"}).status_code == 200


def test_the_last_of_two_equal_keys_is_used_and_both_are_validated(embeddings: TestClient) -> None:
    first = embeddings.post("/v1/embeddings", content=b'{"input": ["a", "b"], "input": "c"}', headers=JSON)
    assert len(first.json()["data"]) == 1

    for raw in (b'{"input": 5, "input": "b"}', b'{"input": "b", "input": 5}'):
        assert assert_refused(embeddings.post("/v1/embeddings", content=raw, headers=JSON))["param"] == "body.input"


@pytest.mark.parametrize(
    "path", [path for path in ROUTES if path not in ("/classify", "/entities", "/v1/sparse_embeddings")]
)
def test_a_body_over_the_limit_is_refused_with_or_without_content_length(llm: LLM, path: str) -> None:
    client = make_client(llm, max_body_bytes=1000)
    whole = json.dumps(dict(ROUTES[path].example) | {"user": "x" * 2000}).encode()

    def stream_chunks() -> Iterator[bytes]:
        for start in range(0, len(whole), 100):
            yield whole[start : start + 100]

    declared = assert_refused(client.post(path, content=whole, headers=JSON), 413)
    assert f"request body too large: {len(whole)} bytes, limit 1000 bytes" in declared["message"]
    undeclared = assert_refused(client.post(path, content=stream_chunks(), headers=JSON), 413)
    assert "request body too large: more than 1000 bytes, limit 1000 bytes" in undeclared["message"]
    misdeclared = assert_refused(
        client.post(path, content=stream_chunks(), headers=JSON | {"content-length": "10"}), 413
    )
    assert "more than 1000 bytes" in misdeclared["message"]
    assert_works(client, ROUTES[path])


def test_error_messages_are_limited_in_length(clients: Clients) -> None:
    long = "x" * 1_000_000
    for path, body, status in (
        ("/v1/embeddings", {"input": "a", "model": long}, 404),
        ("/v1/embeddings", {"input": "a", "prompt_name": long}, 400),
        ("/pooling", {"input": "a", "task": long}, 400),
        ("/v2/embed", {"texts": ["a"], "input_type": long}, 400),
        ("/rerank", {"query": "a", "documents": [{f"key{i}": 1 for i in range(100_000)}]}, 400),
        ("/rerank", {"query": "a", "documents": [{"a": 1}], "rank_fields": [long]}, 400),
        ("/classify", {"messages": [{"role": "user", "content": [{"type": long}]}]}, 400),
    ):
        reply = clients[path].post(path, json=ROUTES[path].example | body)
        assert len(assert_refused(reply, status)["message"]) < 3000
        assert len(reply.content) < 20_000


def test_the_error_for_a_value_of_megabytes_takes_no_time_per_character() -> None:
    raw = json.dumps({"input": "a", "encoding_format": "x" * 20_000_000 + " - at `$.input`"}).encode()
    started_at = time.process_time()
    sum(1 for _ in raw)  # what a loop over its characters takes on this machine
    loop_s, started_at = time.process_time() - started_at, time.process_time()

    with pytest.raises(InvalidBody, match=r"encoding_format: Invalid enum value 'xxx.*; expected one of: ") as caught:
        parse_body(ROUTES["/v1/embeddings"].body_type, raw)

    assert caught.value.param == "body.encoding_format" and len(caught.value.message) < 5000
    assert time.process_time() - started_at < loop_s


def test_a_template_over_the_length_limit_is_refused(llm: LLM) -> None:
    client = make_client(llm, trust_request_chat_template=True)
    body = {"messages": [{"role": "user", "content": "a"}]}

    assert client.post("/v1/embeddings", json=body | {"chat_template": "{{ 1 }}"}).status_code == 200
    error = assert_refused(client.post("/v1/embeddings", json=body | {"chat_template": "{{ 1 }}" * 200_000}))
    assert error["param"] == "chat_template"
    assert "chat_template has 1400000 characters, limit 100000" in error["message"]


@pytest.mark.parametrize(("num_keys", "status"), [(131_000, 200), (1_000_000, 413)])
def test_unknown_keys_are_ignored_unless_there_are_too_many(embeddings: TestClient, num_keys: int, status: int) -> None:
    raw = b'{"input": "a", ' + b",".join(b'"k%d":1' % number for number in range(num_keys)) + b"}"

    assert embeddings.post("/v1/embeddings", content=raw, headers=JSON).status_code == status


@pytest.mark.parametrize("piece", first_of([b"[7]", b"[]", b"{}", b'{"role":"user"}', b'"a"', b"7"]))
def test_a_body_of_millions_of_values_is_refused_before_parsing(embeddings: TestClient, piece: bytes) -> None:
    raw = b'{"input": [' + b",".join([piece] * (30_000_000 // (len(piece) + 1))) + b"]}"
    started_at = time.perf_counter()

    error = assert_refused(embeddings.post("/v1/embeddings", content=raw, headers=JSON), 413)

    assert error["param"] == "body" and "the body has" in error["message"]
    assert time.perf_counter() - started_at < 20  # parsing would take a minute
    assert_works(embeddings, ROUTES["/v1/embeddings"])


@pytest.mark.parametrize("num_texts", range(8))
def test_characters_and_errors_are_found_across_slices(monkeypatch: pytest.MonkeyPatch, num_texts: int) -> None:
    monkeypatch.setattr(body_module, "SLICE_BYTES", 7)
    raw = ('["' + "\U0001f600é," * num_texts).encode()

    check_utf8(raw + b'"]')
    assert count_chars(raw) == {b",": num_texts, b'"': 1, b":": 0, b"[": 1, b"{": 0}
    for invalid in (b"\xff", b"\xf0\x9f", b"\xed\xa0\x80"):
        with pytest.raises(InvalidBody, match=rf"at byte {len(raw)}\b"):
            check_utf8(raw + invalid + b'"]')


@pytest.mark.parametrize("slice_bytes", [1, 2, 3, 7, 10**6])
def test_brackets_and_commas_in_strings_are_not_counted(monkeypatch: pytest.MonkeyPatch, slice_bytes: int) -> None:
    monkeypatch.setattr(body_module, "SLICE_BYTES", slice_bytes)
    monkeypatch.setattr(body_module, "SMALL_BYTES", 10)
    monkeypatch.setattr(body_module, "MAX_CONTAINERS", 10)
    monkeypatch.setattr(body_module, "MAX_VALUES", 10)
    monkeypatch.setattr(body_module, "MAX_KEYS", 2)
    texts = ["[" * 50, "{," * 50, '"[[[[[[', '\\"[[[[[[[[[[[[', "\\\\", ',,,,,,,,,,,"', "", '\\\\\\"[[[[[[[[[']
    raw = json.dumps({"input": texts}).encode()

    assert strip_strings(raw) == b'{"": ["", "", "", "", "", "", "", ""]}'
    assert check_raw_body(raw) == 7 * 40 + 18 * 28 + 70 + 64 + 200
    with pytest.raises(BodyTooLarge, match="the body has 11 lists and objects, limit 10"):
        check_raw_body(json.dumps({"input": [[]] * 9}).encode())
    with pytest.raises(BodyTooLarge, match="the body has 11 values, limit 10"):
        check_raw_body(json.dumps({"input": ["["] * 12}).encode())
    with pytest.raises(BodyTooLarge, match="the body has 3 keys of objects, limit 2"):
        check_raw_body(json.dumps({"input": "::", "a": 1, "b": 2}).encode())
