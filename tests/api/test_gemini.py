"""Gemini's and Vertex AI's routes return the embeddings of LLM.embed and errors as their clients read them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.protocol.requests import PoolRequest
from tests.api.app_client import make_client
from tests.factories import LLMFactory
from tests.tiny import tiny_bert

VERSIONS = ["/v1", "/v1beta", "/v1beta1", ""]
TEXTS = ["the cat is in the city", "a red bird"]
LONG_TEXT = "river " * 400


def embed(llm: LLM, texts: list[str]) -> np.ndarray[Any, Any]:
    return np.array([output.outputs.embedding for output in llm.embed(texts, use_tqdm=False)])


def content(*texts: str) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": text} for text in texts]}


def batch(texts: list[str], **options: Any) -> dict[str, Any]:
    return {"requests": [{"model": "models/mini", "content": content(text), **options} for text in texts]}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_batch_has_an_embedding_for_each_content(client: TestClient, llm: LLM, version: str) -> None:
    path = f"{version}/models/mini:batchEmbedContents?$alt=json;enum-encoding=int"

    reply = client.post(path, json=batch(TEXTS, taskType=2))

    assert reply.status_code == 200, reply.text
    vectors = [item["values"] for item in reply.json()["embeddings"]]
    np.testing.assert_allclose(vectors, embed(llm, TEXTS), atol=1e-6)


def test_one_content_has_one_embedding_also_of_several_parts(client: TestClient, llm: LLM) -> None:
    reply = client.post("/v1beta/models/mini:embedContent", json={"content": content(*TEXTS)}).json()

    np.testing.assert_allclose(reply["embedding"]["values"], embed(llm, ["\n".join(TEXTS)])[0], atol=1e-6)
    assert reply["usageMetadata"]["promptTokenCount"] > 0


def test_long_texts_are_truncated_unless_auto_truncate_is_false(client: TestClient) -> None:
    body: dict[str, Any] = {"content": content(LONG_TEXT)}
    assert client.post("/v1/models/mini:embedContent", json=body).json()["usageMetadata"]["promptTokenCount"] == 256

    for options in ({"autoTruncate": False}, {"embedContentConfig": {"autoTruncate": False}}):
        reply = client.post("/v1/models/mini:embedContent", json=body | options)
        assert reply.status_code == 400 and "256" in reply.json()["error"]["message"]


def test_tokens_are_counted(client: TestClient) -> None:
    reply = client.post("/v1beta/models/mini:countTokens", json={"contents": [content("a red bird")]})

    assert reply.json() == {"totalTokens": 5}


def test_vertex_predict_returns_embeddings_with_statistics(client: TestClient, llm: LLM) -> None:
    instances = [{"content": TEXTS[0], "task_type": "RETRIEVAL_QUERY"}, {"content": LONG_TEXT}]
    body = {"instances": instances, "parameters": {"autoTruncate": True}}

    reply = client.post("/v1beta1/publishers/google/models/mini:predict", json=body)

    first, second = [item["embeddings"] for item in reply.json()["predictions"]]
    np.testing.assert_allclose(first["values"], embed(llm, TEXTS[:1])[0], atol=1e-6)
    assert first["statistics"]["truncated"] is False
    assert second["statistics"] == {"truncated": True, "token_count": 256}
    body["parameters"] = {"autoTruncate": False}
    assert client.post("/v1beta1/publishers/google/models/mini:predict", json=body).status_code == 400


@pytest.mark.parametrize(
    ("path", "body", "code", "status"),
    [
        ("/v1/models/mini:embedContent", {}, 400, "INVALID_ARGUMENT"),
        ("/v1/models/mini:embedContent", {"content": content("a"), "taskType": "OTHER"}, 400, "INVALID_ARGUMENT"),
        ("/v1/models/mini:embedContent", {"content": content("a"), "taskType": 99}, 400, "INVALID_ARGUMENT"),
        ("/v1/models/mini:embedContent", {"content": content("a"), "outputDimensionality": 9}, 400, "INVALID_ARGUMENT"),
        ("/v1/models/other:embedContent", {"content": content("a")}, 404, "NOT_FOUND"),
    ],
)
def test_errors_have_the_code_and_the_name_of_the_status(
    client: TestClient, path: str, body: Any, code: int, status: str
) -> None:
    reply = client.post(path, json=body)

    assert reply.status_code == code
    assert reply.json().keys() == {"error"}
    assert reply.json()["error"]["code"] == code and reply.json()["error"]["status"] == status


def test_an_error_of_one_content_cancels_those_with_other_options(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, cancelled = llm.engine.pool, []

    async def pool_or_hang(request: PoolRequest) -> Any:
        if request.inputs != ["hangs"]:
            return await pool(request)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(request.inputs)
            raise

    monkeypatch.setattr(llm.engine, "pool", pool_or_hang)
    body = batch(["hangs"])
    body["requests"] += batch([LONG_TEXT], autoTruncate=False)["requests"]

    assert make_client(llm).post("/v1/models/mini:batchEmbedContents", json=body).status_code == 400
    assert cancelled == [["hangs"]]


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory, open_llm: LLMFactory) -> LLM:
    folder: Path = tmp_path_factory.mktemp("prompted")
    tiny_bert(folder)
    settings = '{"prompts": {"query": "red ", "document": "old "}}'
    (folder / "config_sentence_transformers.json").write_text(settings)
    return open_llm(folder)


@pytest.mark.parametrize(
    ("task_type", "prompt"),
    [(1, "red "), ("RETRIEVAL_QUERY", "red "), ("QUESTION_ANSWERING", "red "), (2, "old "), (None, ""), (0, "")],
)
def test_the_task_type_selects_the_prompt_of_each_content(prompted: LLM, task_type: Any, prompt: str) -> None:
    body = batch(["bird"], taskType=task_type)
    body["requests"].append({"content": content("bird"), "title": "river", "taskType": "RETRIEVAL_DOCUMENT"})

    reply = make_client(prompted).post("/v1/models/tiny:batchEmbedContents", json=body).json()

    vectors = [item["values"] for item in reply["embeddings"]]
    np.testing.assert_allclose(vectors, embed(prompted, [f"{prompt}bird", "old river\nbird"]), atol=1e-6)


@pytest.mark.parametrize(("headers", "query"), [({"x-goog-api-key": "secret"}, ""), ({}, "?key=secret")])
def test_the_key_is_a_header_or_a_query_parameter(llm: LLM, headers: dict[str, str], query: str) -> None:
    client, body = make_client(llm, api_key=("secret",)), {"content": content("a")}

    assert client.post(f"/v1/models/mini:embedContent{query}", json=body, headers=headers).status_code == 200
    refused = client.post("/v1/models/mini:embedContent?key=other", json=body)
    assert refused.status_code == 401 and refused.json()["error"]["status"] == "UNAUTHENTICATED"


def test_contents_to_count_are_limited_and_their_type_is_checked(llm: LLM) -> None:
    client = make_client(llm, max_request_items=3)
    path = "/v1beta/models/mini:countTokens"

    many = client.post(path, json={"contents": [content("a")] * 4})
    wrong = client.post(path, json={"generateContentRequest": {"contents": "x"}})

    assert many.status_code == 400 and "contents has 4 items, limit 3" in many.json()["error"]["message"]
    assert wrong.status_code == 400 and "contents: expected array" in wrong.json()["error"]["message"]
    assert client.post(path, json={"contents": [content("a")] * 3}).json() == {"totalTokens": 9}
