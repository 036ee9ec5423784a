"""NVIDIA NIM's routes: rankings with logits, health, and roles in model names."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from cenote import LLM
from tests.api.app_client import load_llm, make_client
from tests.factories import LLMFactory
from tests.tiny import tiny_bert, tiny_cross_encoder

QUERY, PASSAGES = "the old city", ["a red bird", "the river in the city", "two fish"]
BODY: dict[str, Any] = {"query": {"text": QUERY}, "passages": [{"text": text} for text in PASSAGES]}


@pytest.fixture(scope="module")
def llm(shared_llm: LLMFactory) -> LLM:
    return shared_llm(tiny_cross_encoder)


@pytest.mark.parametrize("path", ["/v1/ranking", "/v1/retrieval/tiny/reranking"])
def test_rankings_are_the_logits_best_first(client: TestClient, path: str) -> None:
    scores = client.post("/score", json={"queries": QUERY, "documents": PASSAGES, "use_activation": False}).json()
    logits = [item["score"] for item in scores["data"]]

    reply = client.post(path, json=BODY | {"model": "tiny", "truncate": "END"})

    rankings = reply.json()["rankings"]
    assert [item["index"] for item in rankings] == sorted(range(3), key=lambda index: -logits[index])
    assert [item["logit"] for item in rankings] == pytest.approx(sorted(logits, reverse=True), abs=1e-5)
    assert len(client.post(path, json=BODY | {"top_k": 1}).json()["rankings"]) == 1


def test_long_passages_are_an_error_unless_truncate_is_set(client: TestClient) -> None:
    body = BODY | {"passages": [{"text": "bird " * 2000}]}

    assert client.post("/v1/ranking", json=body).status_code == 400
    assert client.post("/v1/ranking", json=body | {"truncate": "END"}).status_code == 200
    assert client.post("/v1/ranking", json=BODY | {"passages": []}).status_code == 400
    assert client.post("/v1/retrieval/other/reranking", json=BODY).status_code == 404


def test_health_needs_no_key_and_metadata_lists_the_models(llm: LLM) -> None:
    client = make_client(llm, api_key=("secret",))

    assert client.get("/v1/health/ready").json() == {"object": "health.response", "message": "ready", "ready": True}
    assert client.get("/v1/health/live").status_code == 200
    assert client.get("/v1/metadata").status_code == 401
    metadata = client.get("/v1/metadata", headers={"api-key": "secret"}).json()
    assert [model["id"] for model in metadata["modelInfo"]] == ["tiny"]


def test_the_suffix_of_a_model_name_selects_the_prompt(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("prompted")
    tiny_bert(folder)
    settings = '{"prompts": {"query": "red ", "document": "old "}}'
    (folder / "config_sentence_transformers.json").write_text(settings)
    with load_llm(folder) as llm:
        client = make_client(llm)
        vectors = {
            (model, text): client.post("/v1/embeddings", json={"model": model, "input": text}).json()["data"]
            for model in ("tiny", "tiny-query", "tiny-passage")
            for text in ("bird", "red bird", "old bird")
        }

    assert vectors["tiny-query", "bird"] == vectors["tiny", "red bird"] != vectors["tiny", "bird"]
    assert vectors["tiny-passage", "bird"] == vectors["tiny", "old bird"]
