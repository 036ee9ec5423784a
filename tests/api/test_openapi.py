"""The OpenAPI document matches the server: its routes, bodies, responses and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from jsonschema import Draft202012Validator
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.api.auth import PLAYGROUND
from cenote.api.dialects import DIALECTS
from cenote.api.docs import DOCS_ROUTES
from cenote.api.log_config import PAGE_FILES
from cenote.api.openapi import build_document
from cenote.api.replies import encode_default_error
from cenote.api.route_table import RouteTable
from cenote.api.system_routes import SYSTEM_ROUTES
from cenote.config.server import ServerConfig
from tests.api.api_document import Document, assert_documented, get_document
from tests.api.app_client import list_served_routes, make_client, save_chat_cross_encoder
from tests.factories import LLMFactory
from tests.suite import first_of
from tests.tiny import tiny_bert_classifier, tiny_bert_token_classifier, tiny_bge_m3

ROUTES = [route for dialect in DIALECTS for route in dialect.routes]
PATHS = list(dict.fromkeys(path for route in ROUTES for path in route.paths))
WITHOUT_MODEL = ("/api/show", "/api/pull")  # answered without a call of the engine
DEFAULT_PATHS = [
    path
    for dialect in DIALECTS
    for route in dialect.routes
    for path in route.paths
    if dialect.encode_error is encode_default_error
]
CONVERSATION = [{"role": "user", "content": "the old city"}]

Models = dict[str, TestClient]


@pytest.fixture(scope="module")
def models(llm: LLM, shared_llm: LLMFactory) -> Models:
    cross_encoder = shared_llm(save_chat_cross_encoder)
    return {
        "embedder": make_client(llm, allow_local_admin=True),
        "cross-encoder": make_client(cross_encoder, enable_tokenizer_info_endpoint=True, allow_local_admin=True),
        "classifier": make_client(shared_llm(tiny_bert_classifier)),
        "token-classifier": make_client(shared_llm(tiny_bert_token_classifier)),
        "bge-m3": make_client(shared_llm(tiny_bge_m3)),
    }


def list_examples(path: str, document: Document) -> list[dict[str, Any]]:
    """Return the example of the default route of a path, then those of its other routes."""
    content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    return [entry["value"] for entry in content["examples"].values()] if "examples" in content else [content["example"]]


def get_example(path: str, document: Document) -> dict[str, Any]:
    return list_examples(path, document)[0]


@pytest.mark.parametrize("name", first_of(["embedder", "cross-encoder", "classifier", "token-classifier", "bge-m3"]))
def test_the_document_is_valid(models: Models, name: str) -> None:
    document = get_document(models[name])

    schemathesis.openapi.from_dict(document).validate()
    assert document["openapi"] == "3.1.0"
    assert document["info"]["description"].endswith("tokens.")
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    identifiers = [operation["operationId"] for entry in document["paths"].values() for operation in entry.values()]
    assert len(set(identifiers)) == len(identifiers)


def test_the_document_is_valid_while_the_model_is_loading() -> None:
    document = get_document(TestClient(build_app(AppState(ServerConfig()))))

    schemathesis.openapi.from_dict(document).validate()
    assert document["info"]["description"] == "The model is loading."


@pytest.mark.parametrize("name", ["embedder", "cross-encoder", "classifier", "token-classifier", "bge-m3"])
def test_documented_routes_respond_and_others_are_not_found(models: Models, name: str) -> None:
    document = get_document(models[name])
    documented = {path for path, entry in document["paths"].items() if "requestBody" in entry.get("post", {})}

    for path in PATHS:
        # of a path with several routes, the example is that of one that the model supports
        body = get_example(path, document) if path in documented else {}
        reply = models[name].post(path, json=body)
        assert ("does not support" not in reply.text) == (path in documented), path


def list_operations(client: TestClient) -> set[tuple[str, str]]:
    """Return path and method of all routes of the app, but pages, their files, and errors about generated text."""
    served = {(path, method.lower()) for path, methods in list_served_routes(client).items() for method in methods}
    pages = {(path, "get") for path, _ in served if path == PLAYGROUND or path.startswith(PAGE_FILES)}
    generation = {(path, "post") for dialect in DIALECTS for path in dialect.generation_paths}
    return {(path, method) for path, method in served if method != "head"} - pages - generation


def list_documented(client: TestClient) -> set[tuple[str, str]]:
    return {(path, method) for path, entry in get_document(client)["paths"].items() for method in entry}


@pytest.mark.parametrize("option", ["disable_ui", "enable_tokenizer_info_endpoint", "allow_runtime_lora_updating"])
def test_the_document_has_every_route_of_the_app_while_the_model_is_loading(option: str) -> None:
    client = TestClient(build_app(AppState(ServerConfig(**{option: True}))))

    assert list_documented(client) == list_operations(client)


@pytest.mark.parametrize("name", ["embedder", "cross-encoder"])
def test_only_routes_that_the_model_does_not_support_are_left_out(models: Models, name: str) -> None:
    left_out = list_operations(models[name]) - list_documented(models[name])

    routes = {path: found.default.route for path, found in RouteTable(DIALECTS).by_path.items()}
    assert left_out and list_documented(models[name]) <= list_operations(models[name])
    for path, method in left_out:
        reply, route = models[name].request(method, path, json={}), routes[path]
        assert f"does not support {route.needs.api_name} API" in reply.text and "supported routes: " in reply.text, path
        assert (reply.status_code == 404) == route.is_absent_if_unsupported


def test_docs_can_be_disabled(llm: LLM) -> None:
    client = make_client(llm, disable_docs=True)

    for path in ("/openapi.json", "/docs", "/redoc", "/docs/swagger-ui-bundle.js"):
        assert client.get(path).status_code == 404


def test_operations_are_grouped_by_dialect_and_aliases_name_the_path_that_they_repeat(llm: LLM) -> None:
    document = get_document(make_client(llm))

    titles = [tag["name"] for tag in document["tags"]]
    assert titles[0] == "OpenAI" and titles[-2:] == ["Server", "Administration"]
    for path, entry in document["paths"].items():
        for method, operation in entry.items():
            assert operation["tags"] and set(operation["tags"]) <= set(titles), path
            if (target := operation.get("x-alias-of")) is not None:
                repeated = document["paths"][target][method]
                assert "x-alias-of" not in repeated
                assert (operation["summary"], operation["tags"]) == (repeated["summary"], repeated["tags"])
    assert document["paths"]["/embeddings"]["post"]["x-alias-of"] == "/v1/embeddings"
    assert "x-alias-of" not in document["paths"]["/v1/rerank"]["post"]
    assert list(document["paths"]["/rerank"]["post"]["tags"])[0].startswith("Rerank")
    assert {"Text Embeddings Inference", "Weaviate"} <= set(document["paths"]["/rerank"]["post"]["tags"])


@pytest.mark.parametrize("path", PATHS)
def test_every_example_works_and_its_response_is_documented(models: Models, path: str) -> None:
    num_supporting = 0
    for client in models.values():
        document = get_document(client)
        if path not in document["paths"]:
            continue
        num_supporting += 1
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        for example in list_examples(path, document):
            Draft202012Validator(content["schema"] | {"components": document["components"]}).validate(example)
            reply = client.post(path, json=example)
            assert reply.status_code == 200, reply.text
            assert_documented(reply, path, "post", document)
    assert num_supporting


@pytest.mark.parametrize("name", ["embedder", "cross-encoder"])
def test_responses_of_system_routes_are_documented(models: Models, name: str) -> None:
    document = get_document(models[name])
    model = models[name].get("/v1/models").json()["data"][0]["id"]

    paths = {path: entry for path, entry in document["paths"].items() if not path.startswith("/admin/")}
    for path, entry in paths.items():
        for method in [method for method, operation in entry.items() if "requestBody" not in operation]:
            reply = models[name].request(method.upper(), path.replace("{name}", model))
            assert reply.status_code == 200
            assert_documented(reply, path, method, document)
    assert models[name].get("/v1/models/unknown").status_code == 404
    assert_documented(models[name].get("/v1/models/unknown"), "/v1/models/{name}", "get", document)
    local = TestClient(models[name].app, base_url="http://localhost", client=("127.0.0.1", 1))
    for client, status in ((local, 200), (models[name], 403)):
        assert client.get("/admin/models").status_code == status
        assert_documented(client.get("/admin/models"), "/admin/models", "get", document)


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
        ("token-classifier", "/pooling", {"input": "a b c", "use_activation": False}),
    ],
)
def test_responses_of_every_format_are_documented(models: Models, model: str, path: str, body: Any) -> None:
    reply = models[model].post(path, json=body)

    assert reply.status_code == 200, reply.text
    assert_documented(reply, path, "post", get_document(models[model]))


@pytest.mark.parametrize("path", DEFAULT_PATHS)
def test_error_responses_match_the_document(models: Models, path: str) -> None:
    client = next(client for client in models.values() if path in get_document(client)["paths"])
    example = get_example(path, get_document(client))
    replies = [
        (400, client.post(path, json=[])),
        (404, client.post(path.replace("{model}", "unknown"), json=example | {"model": "unknown"})),
        (400, client.post(path, content=json.dumps(example), headers={"content-type": "text/plain"})),
    ]
    if path not in WITHOUT_MODEL:
        replies.append((504, client.post(path, json=example, headers={"x-request-timeout-ms": "0.000001"})))

    for status, reply in replies:
        assert reply.status_code == status, reply.text
        assert_documented(reply, path, "post", get_document(client))


def test_with_an_api_key_the_document_marks_protected_routes(llm: LLM) -> None:
    client = make_client(llm, api_key=("secret",))
    document = Document(client.get("/openapi.json", headers={"authorization": "Bearer secret"}).json())

    schemathesis.openapi.from_dict(document).validate()
    for path, entry in document["paths"].items():
        for method, operation in entry.items():
            reply = client.request(method.upper(), path.replace("{name}", "mini"))
            assert (reply.status_code == 401) == ("security" in operation), path
            if reply.status_code == 401:
                assert_documented(reply, path, method, document)
            else:
                assert method.upper() in RouteTable(DIALECTS, (*SYSTEM_ROUTES, *DOCS_ROUTES)).public[path]


def test_what_an_api_key_may_not_do_is_documented(llm: LLM, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret\nother priority\n")
    client = make_client(llm, api_key_file=str(keys))
    headers = {"authorization": "Bearer secret"}
    reply = client.post("/v1/embeddings", json={"input": "a"}, headers=headers | {"x-priority": "interactive"})

    assert reply.status_code == 403, reply.text
    document = Document(client.get("/openapi.json", headers=headers).json())
    assert_documented(reply, "/v1/embeddings", "post", document)


def test_most_fields_have_descriptions(models: Models) -> None:
    schemas = get_document(models["embedder"])["components"]["schemas"]

    field = schemas["EmbeddingsBody"]["properties"]["truncate_prompt_tokens"]
    assert "-1" in field["description"]
    assert {"type": "integer", "minimum": -1, "maximum": 2**63 - 1} in field["anyOf"]
    for body in ("EmbeddingsBody", "PoolingBody", "RerankBody", "EmbedBody", "TokenizeBody"):
        described = [name for name, field in schemas[body]["properties"].items() if "description" in field]
        assert len(described) > len(schemas[body]["properties"]) / 2


def test_the_document_is_made_once_until_the_models_change(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    app_state = AppState(ServerConfig())
    client = TestClient(build_app(app_state))
    documents = []

    def build(*args: Any) -> dict[str, Any]:
        documents.append(build_document(*args))
        return documents[-1]

    monkeypatch.setattr("cenote.api.openapi.build_document", build)
    loading = [client.get("/openapi.json").json() for _ in range(2)]
    app_state.set_engine(llm.engine)
    loaded = [client.get("/openapi.json").json() for _ in range(2)]

    assert len(documents) == 2
    assert loading[0] == loading[1] and loaded[0] == loaded[1]
    assert loading[0]["info"]["description"] == "The model is loading." != loaded[0]["info"]["description"]
