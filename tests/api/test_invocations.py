"""One route for all kinds of requests: each body reaches the handler that its keys mean."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from cenote import LLM
from tests.api.app_client import assert_refused, load_llm, make_client
from tests.tiny import tiny_bert_classifier, tiny_bert_token_classifier


@pytest.fixture(scope="module")
def clients(llm: LLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, TestClient]]:
    folders = [tmp_path_factory.mktemp(name) for name in ("cross_encoder", "classifier", "tagger")]
    tiny_bert_classifier(folders[0], num_labels=1)
    tiny_bert_classifier(folders[1], num_labels=3)
    tiny_bert_token_classifier(folders[2])
    with load_llm(folders[0]) as cross_encoder, load_llm(folders[1]) as classifier, load_llm(folders[2]) as tagger:
        yield {
            "embedder": make_client(llm),
            "cross-encoder": make_client(cross_encoder),
            "classifier": make_client(classifier),
            "tagger": make_client(tagger),
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
        ("tagger", "/pooling", {"input": ["a", "b"]}),
        ("tagger", "/pooling", {"task": "token_classify", "input": "a"}),
    ],
)
def test_a_body_is_answered_as_on_its_own_route(
    clients: dict[str, TestClient], model: str, path: str, body: dict[str, Any]
) -> None:
    own, ours = (
        clients[model].post(each, json=body, headers={"x-request-id": "r-4"}) for each in (path, "/invocations")
    )

    assert ours.status_code == own.status_code == 200, ours.text
    assert ours.headers["content-type"] == own.headers["content-type"]
    if ours.headers["content-type"] == "application/json":
        assert ours.json() | {"created": 0} == own.json() | {"created": 0}
        assert ours.json()["id"].endswith("-r-4")
    else:
        assert ours.content == own.content


def test_errors_are_those_of_the_matched_route(clients: dict[str, TestClient]) -> None:
    embedder = clients["embedder"]
    for body, words, param in (
        ({"input": ["a", 5]}, "input.1: expected a text like the first", "body.input.1"),
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
    for kind in ("/v1/embeddings: input or messages", "/rerank: query + documents", "/score: queries + documents or"):
        assert kind in reply.json()["message"]
    assert "/classify" not in reply.json()["message"]


def test_what_the_model_does_not_offer_is_not_among_the_choices(clients: dict[str, TestClient]) -> None:
    reply = clients["classifier"].post("/invocations", json={"text_1": "a", "text_2": "b"})

    assert_refused(reply, "Expected one of: ['/classify: input or messages', '/pooling: ", "body")


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[1]", b'"a"', b"nothing", b'{"input": "\xff"}', b'{"task": "\\ud800", "input": "a"}', b"[" * 100_000],
)
def test_what_is_no_object_is_refused(clients: dict[str, TestClient], raw: bytes) -> None:
    reply = clients["embedder"].post("/invocations", content=raw, headers={"content-type": "application/json"})

    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith("body")


def test_matching_a_large_body_is_fast(clients: dict[str, TestClient]) -> None:
    text = "water " * 2_000_000
    times = []
    for path in ("/v1/embeddings", "/invocations"):
        began = time.perf_counter()
        reply = clients["embedder"].post(path, json={"input": text})
        times.append(time.perf_counter() - began)
        assert_refused(reply, "maximum context length is 256 tokens", "input_text")

    assert times[1] < times[0] + 0.5
