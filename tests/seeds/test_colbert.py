"""ColBERT models of three backbones, on the routes and with the bodies of the guide."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from starlette.testclient import TestClient
from torch.testing import assert_close

from cenote import LLM
from tests.api.app_client import make_client
from tests.seeds.checkpoints import Models, encode, score

MODEL = "answerdotai/answerai-colbert-small-v1"
QUERY = "What is machine learning?"
DOCUMENTS = [
    "Machine learning is a subset of artificial intelligence.",
    "Python is a programming language.",
    "Deep learning uses neural networks.",
]
PAIR = ["Machine learning is a subset of AI.", "The weather is sunny."]


@pytest.fixture
def llm(models: Models) -> LLM:
    return models.load("colbert", served_model_name=MODEL)


@pytest.fixture
def client(llm: LLM) -> TestClient:
    return make_client(llm)


def post(client: TestClient, route: str, **body: Any) -> Any:
    reply = client.post(route, json={"model": MODEL, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def assert_override_changes_nothing(plain: LLM, overridden: LLM) -> None:
    assert overridden.supported_tasks == plain.supported_tasks == ("token_embed",)
    assert_close(encode(overridden, DOCUMENTS, "token_embed"), encode(plain, DOCUMENTS, "token_embed"))
    assert score(overridden, QUERY, DOCUMENTS) == pytest.approx(score(plain, QUERY, DOCUMENTS), abs=1e-4)
    assert len(set(score(plain, QUERY, DOCUMENTS))) == 3


def test_hf_colbert_works_out_of_the_box(llm: LLM, client: TestClient) -> None:
    assert llm.supported_tasks == ("token_embed",)
    assert len(post(client, "/rerank", query=QUERY, documents=DOCUMENTS)["results"]) == 3
    assert len(post(client, "/score", text_1=QUERY, text_2=PAIR)["data"]) == 2
    (item,) = post(client, "/pooling", input=QUERY, task="token_embed")["data"]
    rows = torch.tensor(item["data"])
    assert rows.shape[1] == 12
    assert_close(rows.norm(dim=-1), torch.ones(len(rows)))


def test_colbert_modern_bert_model_override(models: Models) -> None:
    flags = ["--hf-overrides", '{"architectures": ["ColBERTModernBertModel"]}']

    assert_override_changes_nothing(models.load("modern colbert"), models.load_as_served("modern colbert", *flags))


def test_colbert_jina_roberta_model_override(models: Models) -> None:
    flags = ["--hf-overrides", '{"architectures": ["ColBERTJinaRobertaModel"]}', "--trust-remote-code"]

    assert_override_changes_nothing(models.load("jina colbert"), models.load_as_served("jina colbert", *flags))


def test_rerank_body(llm: LLM, client: TestClient) -> None:
    results = post(client, "/rerank", query=QUERY, documents=DOCUMENTS)["results"]

    scores = [item["relevance_score"] for item in results]
    assert scores == sorted(scores, reverse=True)
    by_index = [item["relevance_score"] for item in sorted(results, key=lambda item: item["index"])]
    assert by_index == pytest.approx(score(llm, QUERY, DOCUMENTS), abs=1e-4)
    assert [item["document"]["text"] for item in results] == [DOCUMENTS[item["index"]] for item in results]


def test_score_body(llm: LLM, client: TestClient) -> None:
    reply = post(client, "/score", text_1=QUERY, text_2=PAIR)

    assert (reply["object"], reply["model"]) == ("list", MODEL)
    assert [(item["index"], item["object"]) for item in reply["data"]] == [(0, "score"), (1, "score")]
    assert [item["score"] for item in reply["data"]] == pytest.approx(score(llm, QUERY, PAIR), abs=1e-4)
