"""Paths that several routes have, model names in paths, GET routes and error formats of dialects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.api.dialects.dialect import Dialect, Need, Route, has_keys
from cenote.api.dialects.openai import OPENAI
from cenote.api.plain_route import PlainRoute
from cenote.api.replies import ErrorBody, Reply, json_reply
from cenote.api.request_context import RequestContext
from cenote.api.route_table import RouteTable
from cenote.config.server import ServerConfig
from cenote.errors import LoadError, PoolingError

KEY = {"authorization": "Bearer secret"}


class NamedBody(msgspec.Struct):
    model: str | None = None


class StringError(msgspec.Struct):
    error: str


async def show_route(body: NamedBody, context: RequestContext) -> Reply:
    await context.select_model(body.model)
    return json_reply({"keys": sorted(context.route.body_keys or ()), "model": context.model})


async def show_state(http: Request, app_state: AppState) -> Reply:
    return json_reply({"state": app_state.status})


def encode_string_error(body: ErrorBody, error: PoolingError | None) -> tuple[int, Any]:
    return (422 if body.code == 400 else body.code), StringError(body.message)


def make_route(*paths: str, **options: Any) -> Route:
    return Route(**({"handler": show_route} | options), paths=paths, example={"a": 1})


def make_client(llm: LLM, *dialects: Dialect, **settings: Any) -> TestClient:
    app_state = AppState(ServerConfig(**settings))
    app_state.set_engine(llm.engine)
    return TestClient(build_app(app_state, dialects), raise_server_exceptions=False)


STRINGS = Dialect(
    "strings",
    [
        make_route("/shared", "/own", body_keys=has_keys("texts")),
        make_route("/shared", body_keys=has_keys(inputs="object")),
        make_route("/shared", body_keys=has_keys("inputs")),
        make_route("/deployments/{model}/embed", body_keys=has_keys("late")),
    ],
    [PlainRoute(show_state, "/state", access="public")],
    encode_string_error,
    StringError,
)
PLAIN = Dialect("plain", [make_route("/shared", "/deployments/{model}/embed")])


@pytest.fixture(scope="module")
def client(llm: LLM) -> TestClient:
    return make_client(llm, PLAIN, STRINGS, served_model_name=("mini", "a/b"))


@pytest.mark.parametrize(
    ("body", "keys"),
    [
        ({"texts": ["a"]}, ["texts"]),
        ({"inputs": {"a": 1}, "texts": None}, ["inputs"]),
        ({"inputs": "a"}, ["inputs"]),
        ({"texts": ["a"], "inputs": "a"}, ["texts"]),
        ({"texts": None}, []),
        ({}, []),
    ],
)
def test_the_keys_of_the_body_select_the_route(client: TestClient, body: dict[str, Any], keys: list[str]) -> None:
    assert client.post("/shared", json=body).json()["keys"] == keys


def test_the_first_route_whose_types_match_takes_the_body() -> None:
    routes = RouteTable([PLAIN, STRINGS]).by_path["/shared"]

    assert [routes.select(raw).route.body_keys for raw in (b'{"inputs": {}}', b'{"inputs": 1}', b"{}")] == [
        has_keys(inputs="object"),
        has_keys("inputs"),
        None,
    ]


@pytest.mark.parametrize("raw", [b"[1]", b"{", b'{"texts"', b"\xff", b"null"])
def test_a_body_that_is_no_object_gets_the_error_of_the_default_route(client: TestClient, raw: bytes) -> None:
    reply = client.post("/shared", content=raw)

    assert reply.status_code == 400 and reply.json()["error"]["type"] == "Bad Request"


def test_large_bodies_are_dispatched_too(client: TestClient) -> None:
    assert client.post("/shared", json={"texts": ["a" * 300_000]}).json()["keys"] == ["texts"]


def test_a_body_that_no_route_takes_is_refused_with_the_keys(llm: LLM) -> None:
    reply = make_client(llm, STRINGS).post("/shared", json={"other": 1})

    assert reply.status_code == 422 and "texts, or inputs" in reply.json()["error"]


@pytest.mark.parametrize("first", [None, has_keys("a"), has_keys("a", "b")])
def test_routes_that_no_body_tells_apart_are_refused_at_start(first: Any) -> None:
    async def other(body: NamedBody, context: RequestContext) -> Reply:
        raise AssertionError

    second = None if first is None else has_keys("a", "b")
    dialects = [
        Dialect("one", [make_route("/x", body_keys=first)]),
        Dialect("two", [make_route("/x", body_keys=second, handler=other)]),
    ]

    with pytest.raises(LoadError, match=r"/x belongs to the routes one\.show_route and two\.other"):
        RouteTable(dialects)


def test_the_model_name_in_a_path_may_have_slashes_and_overrides_the_body(client: TestClient) -> None:
    for name, path in (("mini", "mini"), ("mini", "a/b")):
        reply = client.post(f"/deployments/{path}/embed", json={"model": "unknown"})
        assert reply.json()["model"] == name

    missing = client.post("/deployments/other/embed", json={})
    assert missing.status_code == 404 and "other" in missing.json()["error"]["message"]


def test_every_error_on_a_path_has_the_format_of_its_dialect(llm: LLM) -> None:
    client = make_client(llm, PLAIN, STRINGS, OPENAI, api_key=("secret",), max_body_bytes=200)
    text = {"texts": []}
    replies = {
        401: client.post("/own", json=text),
        404: client.post("/own", json=text | {"model": "x"}, headers=KEY),
        405: client.get("/own", headers=KEY),
        413: client.post("/own", json={"texts": "a" * 300}, headers=KEY),
        422: client.post("/own", json={"model": 1}, headers=KEY),
    }

    assert {status: reply.status_code for status, reply in replies.items()} == {status: status for status in replies}
    assert all(isinstance(reply.json()["error"], str) for reply in replies.values())
    assert replies[401].headers["www-authenticate"] == "Bearer"
    shared = client.post("/shared", json=text | {"model": 1}, headers=KEY)
    assert isinstance(shared.json()["error"], str)
    assert client.post("/v1/embeddings", json={}).json()["error"]["code"] == 401


def test_the_route_of_an_unsupported_task_is_refused_after_the_body_is_known(llm: LLM) -> None:
    unsupported = replace(STRINGS.routes[0], needs=Need("Strings", lambda model_info: False))
    client = make_client(llm, PLAIN, replace(STRINGS, routes=[unsupported]))

    assert client.post("/shared", json={"other": 1}).status_code == 200
    assert "does not support Strings API" in client.post("/shared", json={"texts": 1}).json()["error"]


def test_plain_routes_answer_and_public_ones_need_no_key(llm: LLM) -> None:
    client = make_client(llm, STRINGS, api_key=("secret",))

    assert client.get("/state").json() == {"state": "ready"}
    assert client.post("/state", json={}).status_code == 401


def test_the_document_lists_all_bodies_of_a_shared_path(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]

    assert [parameter["name"] for parameter in paths["/deployments/{model}/embed"]["post"]["parameters"]] == ["model"]
    error = paths["/shared"]["post"]["responses"]["400"]["content"]["application/json"]["schema"]
    assert {schema["$ref"].rpartition("/")[2] for schema in error["anyOf"]} == {"ErrorBody", "StringError"}
    assert "get" in paths["/state"]
