"""What the clients of Infinity and Xinference read besides embeddings and ranks."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from cenote import LLM
from tests.api.app_client import load_llm, make_client
from tests.factories import LLMFactory
from tests.tiny import tiny_bert, tiny_bert_classifier


@pytest.fixture(scope="module")
def llm(shared_llm: LLMFactory) -> LLM:
    return shared_llm(tiny_bert)


def test_models_have_the_stats_that_infinity_clients_parse(llm: LLM) -> None:
    (card,) = make_client(llm).get("/models").json()["data"]

    assert card["owned_by"] == "infinity"
    assert card["stats"] == {"queue_fraction": 0, "queue_absolute": 0, "results_pending": 0, "batch_size": 2048}
    assert card["capabilities"] == ["embed", "rerank"]
    assert card["backend"] == "torch"


@pytest.mark.parametrize("path", ["/embeddings", "/v1/embeddings"])
def test_zero_dimensions_of_infinity_clients_are_all_dimensions(llm: LLM, path: str) -> None:
    client = make_client(llm)
    body = {"input": ["a cat", "the old city"], "dimensions": 0}

    reply = client.post(path, json=body | {"modality": "text"})

    plain = client.post(path, json=body | {"dimensions": None})
    assert [item["embedding"] for item in reply.json()["data"]] == [item["embedding"] for item in plain.json()["data"]]
    assert client.post(path, json=body).status_code == 400
    assert client.post(path, json=body | {"modality": ["text", "text"]}).json()["data"] == reply.json()["data"]
    for modality in ("image", ["text", "image"]):
        assert client.post(path, json=body | {"modality": modality}).status_code == 400


def test_health_has_a_json_body(llm: LLM) -> None:
    body = make_client(llm).get("/health").json()

    assert body["unix"] > 1.7e9
    assert body["status"] == "ok"


def test_a_model_card_names_the_model_type_of_xinference(llm: LLM, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("reranker")
    tiny_bert_classifier(folder, num_labels=1)
    with load_llm(folder) as reranker:
        clients = make_client(llm), make_client(reranker)
        cards = [client.get("/v1/models").json()["data"][0] for client in clients]

    assert [card["model_type"] for card in cards] == ["embedding", "rerank"]


@pytest.mark.parametrize("keys", [(), ("secret",)])
def test_xinference_learns_whether_it_needs_a_key(llm: LLM, keys: tuple[str, ...]) -> None:
    client: TestClient = make_client(llm, api_key=keys)

    assert client.get("/v1/cluster/auth").json() == {"auth": bool(keys)}
