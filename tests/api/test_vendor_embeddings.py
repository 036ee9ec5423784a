"""Paths of Azure and TextEmbed, and the embedding route of llama.cpp."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from cenote import LLM, PoolingParams
from tests.api.app_client import make_client

TEXTS = ["the cat is in the city", "a red bird"]


@pytest.fixture(scope="module")
def client(llm: LLM) -> TestClient:
    return make_client(llm, api_key=("secret",))


HEADERS = {"api-key": "secret"}


@pytest.mark.parametrize(
    "path",
    [
        "/openai/deployments/mini/embeddings?api-version=2024-10-21",
        "/deployments/mini/embeddings?api-version=2024-10-21",
        "/v1/deployments/mini/embeddings?api-version=2024-10-21",
        "/openai/v1/embeddings",
        "/v1/embedding",
    ],
)
def test_azure_paths_are_the_openai_route(client: TestClient, path: str) -> None:
    body = {"input": TEXTS, "encoding_format": "base64"}
    expected = client.post("/v1/embeddings", json=body, headers=HEADERS).json()

    reply = client.post(path, json=body, headers=HEADERS).json()

    assert reply["data"] == expected["data"] and reply["model"] == "mini"
    assert client.post(path, json=body).status_code == 401


def test_the_deployment_is_the_model_whatever_the_body_says(client: TestClient) -> None:
    body = {"input": "a", "model": "other"}

    assert client.post("/openai/deployments/mini/embeddings", json=body, headers=HEADERS).status_code == 200
    unknown = client.post("/openai/deployments/other/embeddings", json={"input": "a"}, headers=HEADERS)
    assert unknown.status_code == 404 and unknown.json()["error"]["code"] == 404


def post_embedding(client: TestClient, **body: Any) -> Any:
    reply = client.post("/embedding", json=body, headers=HEADERS)
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.mark.parametrize("kind", [-1, 0, 1, 2, 3, None])
def test_llama_cpp_normalises_as_requested(client: TestClient, llm: LLM, kind: int | None) -> None:
    (output,) = llm.embed(TEXTS[0], pooling_params=PoolingParams(normalize=False), use_tqdm=False)
    raw = np.array(output.outputs.embedding, dtype=np.float64)
    order = 2 if kind is None else kind
    norm = 1 if order == -1 else np.abs(raw).max() / 32760 if order == 0 else np.linalg.norm(raw, order)

    vector = post_embedding(client, content=TEXTS[0], embd_normalize=kind)["embedding"]

    np.testing.assert_allclose(vector, raw / norm, rtol=1e-4, atol=1e-6 * max(1, np.abs(vector).max()))


def test_llama_cpp_returns_a_list_for_a_list(client: TestClient) -> None:
    rows = post_embedding(client, content=TEXTS)

    assert [row["index"] for row in rows] == [0, 1]
    singles = [post_embedding(client, content=text)["embedding"] for text in TEXTS]
    np.testing.assert_allclose([row["embedding"][0] for row in rows], singles, atol=1e-6)
    ids = [101, 1037, 102]
    assert post_embedding(client, content=[ids])[0]["embedding"][0] == post_embedding(client, content=ids)["embedding"]
    assert client.post("/embedding", json={"content": ["a", 5]}, headers=HEADERS).status_code == 400
