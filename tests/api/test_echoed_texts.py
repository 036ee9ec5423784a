"""Answers that repeat texts of the body: their bytes count as in flight before anything is computed."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from cenote import LLM
from tests.api.app_client import load_llm, make_client
from tests.factories import LLMFactory
from tests.tiny import tiny_bert, tiny_cross_encoder

TEXT = "the cat is in the city " * 5000  # cut by the model, and repeated as a whole
TEXTS = [TEXT] * 10
BODY_BYTES = len(TEXT) * 10
RERANKED: dict[str, tuple[str, dict[str, Any], float]] = {
    "documents": ("/rerank", {"query": "a", "documents": TEXTS, "truncate": True}, 2),
    "data": ("/v1/rerank", {"query": "a", "documents": TEXTS, "return_documents": True}, 3),
    "best": ("/v2/rerank", {"query": "a", "documents": TEXTS, "return_documents": True, "top_n": 1}, 2),
    "objects": ("/v2/rerank", {"query": "a", "documents": [{"text": text} for text in TEXTS]}, 2),
    "texts": ("/rerank", {"query": "a", "texts": TEXTS, "return_text": True, "truncate": True}, 2),
    "input": ("/v1/reranking", {"query": "a", "input": TEXTS, "return_input": True}, 2),
}


@pytest.fixture(scope="module")
def llm(shared_llm: LLMFactory) -> LLM:
    return shared_llm(tiny_cross_encoder)


def make_limited_client(llm: LLM, num_bodies: float) -> TestClient:
    return make_client(llm, max_inflight_bytes=int(num_bodies * BODY_BYTES))


@pytest.mark.parametrize("name", RERANKED)
def test_repeated_documents_are_held_before_they_are_scored(
    name: str, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, body, num_bodies = RERANKED[name]
    assert make_limited_client(llm, num_bodies + 0.2).post(path, json=body).status_code == 200

    monkeypatch.setattr(llm.engine, "score", lambda request: pytest.fail("the request was computed"))
    reply = make_limited_client(llm, num_bodies - 0.1).post(path, json=body)

    assert reply.status_code == 413 and "the answer would take about" in reply.text


def test_documents_that_are_not_repeated_are_not_held_again(llm: LLM) -> None:
    body = {"query": "a", "documents": TEXTS, "truncate": True, "return_documents": False}

    assert make_limited_client(llm, 1.2).post("/rerank", json=body).status_code == 200


def test_more_documents_than_a_request_may_have_are_refused_however_short_they_are(llm: LLM) -> None:
    body = {"query": "a", "documents": ["a"] * 100_000, "return_documents": True, "top_n": 1}

    reply = make_client(llm).post("/rerank", json=body)

    assert reply.status_code == 400 and "2048" in reply.text


def test_the_texts_of_cohere_embeddings_are_held(tmp_path: Any) -> None:
    tiny_bert(tmp_path)
    body = {"texts": TEXTS, "truncate": "END", "input_type": "search_query"}
    with load_llm(tmp_path) as llm:
        assert make_limited_client(llm, 2.2).post("/v1/embed", json=body).status_code == 200
        assert make_limited_client(llm, 1.9).post("/v1/embed", json=body).status_code == 413
