"""Ollama's routes return the embeddings of LLM.embed and errors as its clients read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from cenote import LLM, PoolingParams

TEXTS = ["the cat is in the city", "a red bird"]
LONG_TEXT = "river " * 400
# LangChain sends all options, most of them null
OPTIONS = dict.fromkeys(["mirostat", "num_gpu", "num_thread", "temperature", "stop", "top_k", "num_ctx"])


def embed(llm: LLM, texts: list[str], **params: Any) -> np.ndarray[Any, Any]:
    outputs = llm.embed(texts, pooling_params=PoolingParams(**params), use_tqdm=False)
    return np.array([output.outputs.embedding for output in outputs])


def test_embed_returns_a_normalised_embedding_for_each_text(client: TestClient, llm: LLM) -> None:
    body = {"model": "mini:latest", "input": TEXTS, "truncate": True, "options": OPTIONS, "keep_alive": "5m"}

    reply = client.post("/api/embed", json=body).json()

    np.testing.assert_allclose(reply["embeddings"], embed(llm, TEXTS), atol=1e-6)
    assert reply["model"] == "mini:latest" and reply["prompt_eval_count"] > 0 and reply["total_duration"] > 0
    single = client.post("/api/embed", json={"model": "mini", "input": TEXTS[0]}).json()
    np.testing.assert_allclose(single["embeddings"], embed(llm, TEXTS[:1]), atol=1e-6)


def test_the_former_route_returns_one_embedding_that_is_not_normalised(client: TestClient, llm: LLM) -> None:
    reply = client.post("/api/embeddings", json={"model": "mini", "prompt": TEXTS[0], "options": {}}).json()

    np.testing.assert_allclose(reply["embedding"], embed(llm, TEXTS[:1], normalize=False)[0], atol=1e-5)
    assert abs(np.linalg.norm(reply["embedding"]) - 1) > 0.1


@pytest.mark.parametrize("given", ["", [], None])
def test_without_a_text_nothing_is_embedded(client: TestClient, given: Any) -> None:
    assert client.post("/api/embed", json={"model": "mini", "input": given}).json()["embeddings"] == []
    assert client.post("/api/embeddings", json={"model": "mini", "prompt": ""}).json() == {"embedding": []}


def test_long_texts_are_truncated_unless_truncate_is_false(client: TestClient) -> None:
    reply = client.post("/api/embed", json={"model": "mini", "input": LONG_TEXT})
    assert reply.status_code == 200 and reply.json()["prompt_eval_count"] == 256

    reply = client.post("/api/embed", json={"model": "mini", "input": LONG_TEXT, "truncate": False})
    assert reply.status_code == 400 and "256" in reply.json()["error"]


def test_num_ctx_truncates_and_other_values_of_it_are_refused(client: TestClient) -> None:
    body = {"model": "mini", "input": LONG_TEXT, "options": {"num_ctx": 10}}
    assert client.post("/api/embed", json=body).json()["prompt_eval_count"] == 10

    reply = client.post("/api/embed", json=body | {"options": {"num_ctx": "10"}})
    assert reply.status_code == 400 and "num_ctx" in reply.json()["error"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"model": "other", "input": "a"}, 404),
        ({"model": "mini", "input": 5}, 400),
        ({"model": "mini", "input": "a", "dimensions": 64}, 400),
    ],
)
def test_errors_are_one_string(client: TestClient, body: Any, status: int) -> None:
    reply = client.post("/api/embed", json=body)

    assert reply.status_code == status
    assert reply.json().keys() == {"error"} and isinstance(reply.json()["error"], str)


def test_models_are_listed_shown_and_pulled(client: TestClient) -> None:
    for path in ("/api/tags", "/api/ps"):
        (row,) = client.get(path).json()["models"]
        assert row["name"] == row["model"] == "mini" and row["details"]["family"] == "BertModel"
        assert ("expires_at" in row) == (path == "/api/ps")
    shown = client.post("/api/show", json={"model": "mini"}).json()
    assert "embedding" in shown["capabilities"] and shown["model_info"]["BertModel.context_length"] == 256
    pulled = client.post("/api/pull", json={"model": "mini", "stream": False, "insecure": False})
    assert pulled.json() == {"status": "success"}
    streamed = client.post("/api/pull", json={"name": "mini"})
    assert streamed.headers["content-type"] == "application/x-ndjson" and streamed.text == '{"status":"success"}\n'
    assert client.post("/api/pull", json={"model": "other"}).status_code == 404
    assert client.get("/api/version").json()["version"]
