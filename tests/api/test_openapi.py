"""The OpenAPI document says what the server does: its routes, bodies, replies and errors, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from jsonschema import Draft202012Validator
from starlette.routing import Route
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.api.auth import PUBLIC_ROUTES
from cenote.api.dialects import DIALECTS
from cenote.api.docs import make_docs_routes
from cenote.api.system_routes import make_system_routes
from cenote.config.server import ServerConfig
from tests.api.app_client import add_chat_template, load_llm, make_client
from tests.tiny import tiny_bert_classifier, tiny_bert_token_classifier, tiny_bge_m3

ROUTES = [route for dialect in DIALECTS for route in dialect.routes]
PATHS = [path for route in ROUTES for path in route.paths]
CONVERSATION = [{"role": "user", "content": "the old city"}]

Models = dict[str, TestClient]


@pytest.fixture(scope="module")
def models(llm: LLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    folders = [tmp_path_factory.mktemp(name) for name in ("cross_encoder", "classifier", "tagger", "hybrid")]
    tiny_bert_classifier(folders[0], num_labels=1)
    add_chat_template(folders[0])
    tiny_bert_classifier(folders[1], num_labels=3)
    tiny_bert_token_classifier(folders[2])
    tiny_bge_m3(folders[3])
    with (
        load_llm(folders[0]) as cross_encoder,
        load_llm(folders[1]) as classifier,
        load_llm(folders[2]) as tagger,
        load_llm(folders[3]) as hybrid,
    ):
        yield {
            "embedder": make_client(llm),
            "cross-encoder": make_client(cross_encoder, enable_tokenizer_info_endpoint=True),
            "classifier": make_client(classifier),
            "tagger": make_client(tagger),
            "hybrid": make_client(hybrid),
        }


def document(client: TestClient) -> dict[str, Any]:
    made: dict[str, Any] = client.get("/openapi.json").json()
    return made


def matches(reply: Any, path: str, method: str, headers: dict[str, Any]) -> None:
    """The reply is one that the document tells: its status, its kind, every key of it, every header."""
    answer = headers["paths"][path][method]["responses"][str(reply.status_code)]
    media = reply.headers["content-type"].partition(";")[0]
    schema = answer["content"][media]["schema"]
    if media == "application/json":
        whole = closed(schema | {"components": headers["components"]})
        Draft202012Validator(whole).validate(reply.json())
    for name in answer["headers"]:
        assert reply.headers[name]


def closed(schema: Any) -> Any:
    """The same where no object has more properties than are told."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(value) for name, value in schema.items()}
    return made | {"additionalProperties": False} if isinstance(made.get("properties"), dict) else made


@pytest.mark.parametrize("name", ["embedder", "cross-encoder", "classifier", "tagger", "hybrid"])
def test_the_document_is_valid(models: Models, name: str) -> None:
    made = document(models[name])

    schemathesis.openapi.from_dict(made).validate()
    assert made["openapi"] == "3.1.0"
    assert made["info"]["description"].endswith("tokens.")
    for schema in made["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    identifiers = [each["operationId"] for entry in made["paths"].values() for each in entry.values()]
    assert len(set(identifiers)) == len(identifiers)


def test_the_document_is_valid_while_the_model_is_being_loaded_and_lists_everything() -> None:
    made = document(TestClient(build_app(AppState(ServerConfig()))))

    schemathesis.openapi.from_dict(made).validate()
    assert set(PATHS) <= made["paths"].keys()
    assert made["info"]["description"] == "The model is being loaded."


@pytest.mark.parametrize("name", ["embedder", "cross-encoder", "classifier", "tagger", "hybrid"])
def test_documented_routes_respond_and_others_are_not_found(models: Models, name: str) -> None:
    made = document(models[name])
    asked = {path for path, entry in made["paths"].items() if "requestBody" in entry.get("post", {})}

    for path in PATHS:
        reply = models[name].post(path, json={})
        assert (reply.status_code != 501) == (path in asked), path


def test_every_other_path_is_listed_with_its_methods(llm: LLM) -> None:
    for settings in (ServerConfig(), ServerConfig(enable_tokenizer_info_endpoint=True)):
        service = AppState(settings)
        client = make_client(llm, enable_tokenizer_info_endpoint=settings.enable_tokenizer_info_endpoint)
        served = {}
        for route in (*make_system_routes(service, []), *make_docs_routes(service, [])):
            assert isinstance(route, Route) and route.methods is not None
            served[route.path.replace(":path", "")] = {method.lower() for method in route.methods} - {"head"}

        listed = {path: set(entry) for path, entry in document(client)["paths"].items() if path not in PATHS}
        assert listed == served


def test_a_server_without_documents_has_neither(llm: LLM) -> None:
    client = make_client(llm, disable_docs=True)

    assert client.get("/openapi.json").status_code == 404
    assert client.get("/docs").status_code == 404


@pytest.mark.parametrize("path", PATHS)
def test_every_example_works_and_is_answered_as_the_document_says(models: Models, path: str) -> None:
    num_offering = 0
    for client in models.values():
        made = document(client)
        if path not in made["paths"]:
            continue
        num_offering += 1
        content = made["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        Draft202012Validator(content["schema"] | {"components": made["components"]}).validate(content["example"])
        reply = client.post(path, json=content["example"])
        assert reply.status_code == 200, reply.text
        matches(reply, path, "post", made)
    assert num_offering


@pytest.mark.parametrize("name", ["embedder", "cross-encoder"])
def test_operations_are_answered_as_the_document_says(models: Models, name: str) -> None:
    made = document(models[name])
    model = models[name].get("/v1/models").json()["data"][0]["id"]

    for path, entry in made["paths"].items():
        for method in [method for method, each in entry.items() if "requestBody" not in each]:
            reply = models[name].request(method.upper(), path.replace("{name}", model))
            assert reply.status_code == 200
            matches(reply, path, method, made)
    assert models[name].get("/v1/models/nobody").status_code == 404
    matches(models[name].get("/v1/models/nobody"), "/v1/models/{name}", "get", made)


@pytest.mark.parametrize(
    ("model", "path", "body"),
    [
        ("embedder", "/v1/embeddings", {"input": [7, 8], "return_token_counts": True}),
        ("embedder", "/v1/embeddings", {"input": "a", "encoding_format": "base64"}),
        ("embedder", "/v1/embeddings", {"input": "a", "encoding_format": "bytes"}),
        ("embedder", "/pooling", {"input": ["a", "b c"], "task": "token_embed", "return_token_counts": True}),
        ("embedder", "/pooling", {"input": "a", "encoding_format": "bytes_only"}),
        ("embedder", "/v2/embed", {"texts": ["a"], "embedding_types": ["float", "int8", "uint8", "binary", "base64"]}),
        ("embedder", "/v2/embed", {"texts": ["a b c d"], "max_tokens": 3, "return_token_counts": True}),
        ("embedder", "/v1/embed", {"texts": ["a"]}),
        ("embedder", "/rerank", {"query": "a", "documents": [{"text": "b", "by": "me"}], "return_token_counts": "1"}),
        ("embedder", "/v2/rerank", {"query": "a", "documents": "b", "return_documents": False}),
        ("embedder", "/score", {"queries": "a", "documents": ["b"], "score_type": "late-interaction"}),
        ("embedder", "/tokenize", {"prompt": "a"}),
        ("embedder", "/invocations", {"query": "a", "documents": ["b"]}),
        ("cross-encoder", "/tokenize", {"messages": CONVERSATION}),
        ("cross-encoder", "/classify", {"messages": CONVERSATION, "return_token_counts": True}),
        ("cross-encoder", "/score", {"text_1": "a", "text_2": ["b", "c"], "return_token_counts": True}),
        ("cross-encoder", "/invocations", {"input": "a", "task": "token_classify"}),
        ("tagger", "/pooling", {"input": "a b c", "use_activation": False}),
    ],
)
def test_replies_of_every_form_are_in_the_document(models: Models, model: str, path: str, body: Any) -> None:
    reply = models[model].post(path, json=body)

    assert reply.status_code == 200, reply.text
    matches(reply, path, "post", document(models[model]))


@pytest.mark.parametrize("path", PATHS)
def test_error_responses_match_the_document(models: Models, path: str) -> None:
    client = next(client for client in models.values() if path in document(client)["paths"])
    example = next(dict(route.example) for route in ROUTES if path in route.paths)
    refusals = {
        400: client.post(path, json=[]),
        404: client.post(path, json=example | {"model": "nobody"}),
        415: client.post(path, content=json.dumps(example), headers={"content-type": "text/plain"}),
    }

    for status, reply in refusals.items():
        assert reply.status_code == status, reply.text
        matches(reply, path, "post", document(client))


def test_with_a_key_the_document_says_where_it_is_needed(llm: LLM) -> None:
    client = make_client(llm, api_key=("secret",))
    made = client.get("/openapi.json", headers={"authorization": "Bearer secret"}).json()

    schemathesis.openapi.from_dict(made).validate()
    for path, entry in made["paths"].items():
        for method, each in entry.items():
            reply = client.request(method.upper(), path.replace("{name}", "mini"))
            assert (reply.status_code == 401) == ("security" in each), path
            if reply.status_code == 401:
                matches(reply, path, method, made)
            else:
                assert method.upper() in PUBLIC_ROUTES[path]


def test_a_field_is_explained_where_its_name_does_not_tell(models: Models) -> None:
    schemas = document(models["embedder"])["components"]["schemas"]

    field = schemas["EmbeddingsBody"]["properties"]["truncate_prompt_tokens"]
    assert "-1" in field["description"]
    assert {"type": "integer", "minimum": -1, "maximum": 2**63 - 1} in field["anyOf"]
    for body in ("EmbeddingsBody", "PoolingBody", "RerankBody", "EmbedBody", "TokenizeBody"):
        explained = [name for name, each in schemas[body]["properties"].items() if "description" in each]
        assert len(explained) > len(schemas[body]["properties"]) / 2
