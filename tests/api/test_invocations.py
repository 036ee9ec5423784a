"""/invocations dispatches each body to the route that its keys select."""

from __future__ import annotations

import time
from typing import Any

import pytest
from starlette.testclient import TestClient

from cenote import LLM
from tests.api.app_client import assert_refused, make_client
from tests.factories import LLMFactory
from tests.tiny import tiny_bert_classifier, tiny_bert_token_classifier, tiny_cross_encoder


@pytest.fixture(scope="module")
def clients(llm: LLM, shared_llm: LLMFactory) -> dict[str, TestClient]:
    return {
        "embedder": make_client(llm),
        "cross-encoder": make_client(shared_llm(tiny_cross_encoder)),
        "classifier": make_client(shared_llm(tiny_bert_classifier)),
        "token-classifier": make_client(shared_llm(tiny_bert_token_classifier)),
    }


@pytest.mark.parametrize(
    ("model", "path", "body"),
    [
        ("embedder", "/v1/embeddings", {"input": ["a", "b"]}),
        ("embedder", "/v1/embeddings", {"input": [7, 8], "encoding_format": "base64"}),
        ("embedder", "/v1/embeddings", {"input": "a", "task": "embed"}),
        ("embedder", "/v1/embeddings", {"input": "a", "task": None, "query": None, "documents": None}),
        ("embedder", "/v1/embeddings", {"input": "a", "encoding_format": "bytes"}),
        ("embedder", "/pooling", {"input": "a", "task": "token_embed"}),
        ("embedder", "/rerank", {"query": "a", "documents": ["b", "c"], "top_n": 1}),
        ("embedder", "/score", {"text_1": "a", "text_2": ["b", "c"]}),
        ("embedder", "/score", {"queries": "a", "documents": ["b", "c"]}),
        ("embedder", "/score", {"data_1": "a", "data_2": "b", "score_type": "late-interaction"}),
        ("cross-encoder", "/classify", {"input": "a"}),
        ("cross-encoder", "/rerank", {"query": "a", "documents": ["b", "c"]}),
        ("cross-encoder", "/score", {"queries": "a", "items": ["b", "c"]}),
        ("cross-encoder", "/pooling", {"input": "a", "task": "token_classify"}),
        ("cross-encoder", "/pooling", {"input": "a", "task": "score"}),
        ("classifier", "/classify", {"input": ["a", "b"], "use_activation": False}),
        ("classifier", "/classify", {"input": ["a", "b"], "text_1": "a", "text_2": "b"}),
        ("token-classifier", "/pooling", {"input": ["a", "b"]}),
        ("token-classifier", "/pooling", {"task": "token_classify", "input": "a"}),
    ],
)
def test_the_response_equals_that_of_the_selected_route(
    clients: dict[str, TestClient], model: str, path: str, body: dict[str, Any]
) -> None:
    direct, ours = (
        clients[model].post(route, json=body, headers={"x-request-id": "r-4"}) for route in (path, "/invocations")
    )

    assert ours.status_code == direct.status_code == 200, ours.text
    assert ours.headers["content-type"] == direct.headers["content-type"]
    if ours.headers["content-type"] == "application/json":
        assert ours.json() | {"created": 0} == direct.json() | {"created": 0}
        assert ours.json()["id"].endswith("-r-4")
    else:
        assert ours.content == direct.content


def test_errors_are_those_of_the_matched_route(clients: dict[str, TestClient]) -> None:
    embedder = clients["embedder"]
    for body, words, param in (
        ({"input": ["a", 5]}, "input.1: expected a string like the first item", "body.input.1"),
        ({"input": "a", "dimensions": 5}, "does not support matryoshka representation", None),
        ({"input": "a", "task": "dance"}, "Unsupported task: 'dance'", "task"),
        ({"input": "a", "task": 5}, "task: expected str", "body.task"),
        ({"text_1": ["a", "b"], "text_2": ["c"]}, "Input lengths must be either 1:1, 1:N or N:N", None),
    ):
        assert_refused(embedder.post("/invocations", json=body), words, param)


@pytest.mark.parametrize("body", [{}, {"prompt": "a"}, {"input": None}, {"text_1": "a"}, {"query": "a", "top_n": 3}])
def test_a_body_that_matches_no_route_is_refused_with_the_choices(
    clients: dict[str, TestClient], body: dict[str, Any]
) -> None:
    reply = clients["embedder"].post("/invocations", json=body)

    assert_refused(reply, "Cannot find suitable handler for request. Expected one of: [", "body")
    for choice in ("/v1/embeddings: input or messages", "/rerank: query + documents", "/score: queries + documents or"):
        assert choice in reply.json()["message"]
    assert "/classify" not in reply.json()["message"]


def test_unsupported_routes_are_not_among_the_choices(clients: dict[str, TestClient]) -> None:
    reply = clients["classifier"].post("/invocations", json={"text_1": "a", "text_2": "b"})

    assert_refused(reply, "Expected one of: ['/classify: input or messages', '/pooling: ", "body")


def test_matching_a_large_body_is_fast(clients: dict[str, TestClient]) -> None:
    text = "water " * 2_000_000
    times = []
    for path in ("/v1/embeddings", "/invocations"):
        started_at = time.perf_counter()
        reply = clients["embedder"].post(path, json={"input": text})
        times.append(time.perf_counter() - started_at)
        assert_refused(reply, "maximum context length is 256 tokens", "input_text")

    assert times[1] < times[0] + 0.5


@pytest.mark.parametrize("text_inputs", ["a cat", ["a cat", "the old city " * 300]])
def test_the_inputs_of_jumpstart_are_embedded(clients: dict[str, TestClient], text_inputs: Any) -> None:
    reply = clients["embedder"].post("/invocations", json={"text_inputs": text_inputs})

    expected = clients["embedder"].post("/v1/embeddings", json={"input": text_inputs, "truncate": True}).json()["data"]
    assert reply.json() == {"embedding": [item["embedding"] for item in expected]}


def test_jumpstart_needs_texts_and_an_embedding_model(clients: dict[str, TestClient]) -> None:
    refused = [
        clients[model].post("/invocations", json={"text_inputs": inputs})
        for model, inputs in (("embedder", []), ("embedder", 5), ("classifier", "a"))
    ]

    assert [reply.status_code for reply in refused] == [400, 400, 400]
    assert "text_inputs is empty" in refused[0].text and "does not support Embeddings API" in refused[2].text
