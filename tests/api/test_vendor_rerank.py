"""Rerank routes of Mixedbread and DeepInfra return the scores of /rerank in their own formats."""

from __future__ import annotations

from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
from starlette.testclient import TestClient

from cenote import LLM
from tests.api.app_client import make_client
from tests.factories import LLMFactory
from tests.tiny import tiny_cross_encoder

QUERY, DOCUMENTS = "the old city", ["a red bird", "the river in the city", "two fish"]


@pytest.fixture(scope="module")
def cross_encoder(shared_llm: LLMFactory) -> TestClient:
    return make_client(shared_llm(tiny_cross_encoder))


@pytest.fixture(scope="module")
def expected(cross_encoder: TestClient) -> list[dict[str, Any]]:
    body = {"query": QUERY, "documents": DOCUMENTS}
    results: list[dict[str, Any]] = cross_encoder.post("/rerank", json=body).json()["results"]
    return results


def test_mixedbread_returns_ranked_inputs(cross_encoder: TestClient, expected: list[dict[str, Any]]) -> None:
    body = {"model": "tiny", "query": QUERY, "input": DOCUMENTS, "top_k": 2, "return_input": True}

    reply = cross_encoder.post("/v1/reranking", json=body).json()

    assert [(item["index"], item["score"]) for item in reply["data"]] == [
        (item["index"], item["relevance_score"]) for item in expected[:2]
    ]
    assert [item["input"] for item in reply["data"]] == [DOCUMENTS[item["index"]] for item in expected[:2]]
    assert "input" not in cross_encoder.post("/v1/reranking", json=body | {"return_input": False}).json()["data"][0]


@pytest.mark.parametrize("name", ["documents", "input"])
def test_the_usage_has_all_fields_that_clients_require(cross_encoder: TestClient, name: str) -> None:
    for path in ("/v1/reranking", "/v1/rerank", "/rerank", "/v2/rerank")[: 1 if name == "input" else None]:
        usage = cross_encoder.post(path, json={"query": QUERY, name: DOCUMENTS}).json()["usage"]

        assert usage == {"prompt_tokens": ANY, "total_tokens": usage["prompt_tokens"], "completion_tokens": 0}


def test_mixedbread_reads_the_rank_fields_of_objects(cross_encoder: TestClient, expected: list[dict[str, Any]]) -> None:
    documents = [{"body": text, "number": 1} for text in DOCUMENTS]

    reply = cross_encoder.post("/v1/reranking", json={"query": QUERY, "input": documents, "rank_fields": ["body"]})

    assert [item["score"] for item in reply.json()["data"]] == [item["relevance_score"] for item in expected]


def test_documents_on_the_same_path_get_the_format_of_llama_cpp(
    cross_encoder: TestClient, expected: list[dict[str, Any]]
) -> None:
    for path in ("/v1/reranking", "/reranking"):
        reply = cross_encoder.post(path, json={"query": QUERY, "documents": DOCUMENTS})

        assert reply.json()["results"] == expected


@pytest.mark.parametrize("path", ["/inference/tiny", "/v1/inference/tiny"])
@pytest.mark.parametrize("num_queries", [1, 3])
def test_deepinfra_returns_scores_in_the_order_of_the_documents(
    cross_encoder: TestClient, expected: list[dict[str, Any]], path: str, num_queries: int
) -> None:
    reply = cross_encoder.post(path, json={"queries": [QUERY] * num_queries, "documents": DOCUMENTS}).json()

    by_index = {item["index"]: item["relevance_score"] for item in expected}
    assert reply["scores"] == pytest.approx([by_index[index] for index in range(3)], abs=1e-6)
    assert reply["input_tokens"] > 0 and reply["inference_status"]["status"] == "succeeded"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "expected either"),
        ({"queries": ["a", "b"], "documents": ["c", "d", "e"]}, "2 queries and 3 documents"),
        ({"queries": ["a"], "documents": []}, "empty"),
        ({"inputs": ["a"]}, "no embeddings"),
    ],
)
def test_deepinfra_bodies_that_fit_no_task_are_refused(cross_encoder: TestClient, body: Any, words: str) -> None:
    reply = cross_encoder.post("/inference/tiny", json=body)

    assert reply.status_code == 400 and words in reply.json()["detail"]
    assert cross_encoder.post("/inference/other", json={"queries": ["a"], "documents": ["b"]}).status_code == 404


def test_deepinfra_returns_embeddings_of_inputs(llm: LLM) -> None:
    texts = ["the cat is in the city", "a red bird"]

    reply = make_client(llm).post("/v1/inference/mini", json={"inputs": texts}).json()

    vectors = [output.outputs.embedding for output in llm.embed(texts, use_tqdm=False)]
    np.testing.assert_allclose(reply["embeddings"], vectors, atol=1e-6)
