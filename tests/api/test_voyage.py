"""Voyage's routes: truncation, rerank results in `data`, multimodal inputs and chunks of documents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from cenote import LLM
from tests.api.app_client import post_json

TEXTS = ["the cat is in the city", "a red bird"]
LONG_TEXT = "river " * 400


def test_long_texts_are_truncated_unless_truncation_is_false(client: TestClient) -> None:
    assert post_json(client, "/v1/embeddings", input=LONG_TEXT, truncation=True)["usage"]["total_tokens"] == 256

    refused = client.post("/v1/embeddings", json={"input": LONG_TEXT, "truncation": False})
    assert refused.status_code == 400 and "256" in refused.json()["detail"]


@pytest.mark.parametrize(
    "field", [{"output_dimension": 64}, {"output_dtype": "int4"}, {"truncation": True, "input": 5}]
)
def test_values_that_cannot_be_honoured_are_refused(client: TestClient, field: dict[str, Any]) -> None:
    reply = client.post("/v1/embeddings", json={"input": "a"} | field)

    assert reply.status_code == 400 and isinstance(reply.json()["detail"], str)


def test_rerank_has_its_results_in_data_and_in_results(client: TestClient) -> None:
    body = {"query": "which bird is red?", "documents": [*TEXTS, LONG_TEXT], "model": "mini"}
    expected = post_json(client, "/v2/rerank", **body)["results"]

    reply = post_json(client, "/v1/rerank", **body, top_k=2, truncation=True)

    ranked = [(item["index"], item["relevance_score"]) for item in expected[:2]]
    assert [(item["index"], item["relevance_score"]) for item in reply["data"]] == ranked
    assert reply["results"] == expected[:2] and reply["usage"]["total_tokens"] > 0
    assert "document" not in reply["data"][0]
    shown = post_json(client, "/v1/rerank", **body, top_k=None, truncation=True, return_documents=True)
    assert [item["document"] for item in shown["data"]] == [body["documents"][item["index"]] for item in expected]
    assert client.post("/v1/rerank", json=body | {"truncation": False}).status_code == 400


def test_rerank_has_data_also_if_the_client_sends_only_the_required_fields(client: TestClient) -> None:
    """The JavaScript client sends no field that only Voyage has."""
    reply = post_json(client, "/v1/rerank", query="which bird is red?", documents=TEXTS, model="mini")

    ranked = [(item["index"], item["relevance_score"]) for item in reply["results"]]
    assert [(item["index"], item["relevance_score"]) for item in reply["data"]] == ranked
    assert reply["object"] == "list" and reply["results"][0]["document"]["text"] in TEXTS


def test_multimodal_inputs_of_text_are_embedded(client: TestClient) -> None:
    inputs = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]

    reply = post_json(client, "/v1/multimodalembeddings", inputs=inputs, model="mini", truncation=True, input_type=None)

    expected = post_json(client, "/v2/embed", texts=TEXTS)["embeddings"]["float"]
    np.testing.assert_allclose([item["embedding"] for item in reply["data"]], expected, atol=1e-6)
    assert reply["usage"].keys() == {"text_tokens", "image_pixels", "video_pixels", "total_tokens"}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": "http://localhost/a.png"},
        {"type": "video_url", "video_url": "http://localhost/a.mp4"},
        {"type": "text"},
    ],
)
def test_parts_that_the_model_cannot_read_are_refused(client: TestClient, part: dict[str, Any]) -> None:
    reply = client.post("/v1/multimodalembeddings", json={"inputs": [{"content": [part]}]})

    assert reply.status_code == 400 and isinstance(reply.json()["detail"], str)


def test_chunks_are_embedded_in_the_context_of_their_document(client: TestClient, llm: LLM) -> None:
    documents = [["the cat is", " in the city"], ["a red bird"]]

    answer = post_json(client, "/v1/contextualizedembeddings", inputs=documents, input_type=None)

    expected = [output.outputs.embedding for output in llm.embed(documents, late_chunking=True, use_tqdm=False)]
    found = [chunk["embedding"] for document in answer["data"] for chunk in document["data"]]
    assert np.allclose(found, expected, atol=1e-6)
    assert [len(document["data"]) for document in answer["data"]] == [2, 1]
    assert answer["usage"]["total_tokens"] > 0


def test_whole_documents_are_split_and_their_chunks_returned(client: TestClient) -> None:
    text = "understanding international " * 50

    (document,) = post_json(client, "/v1/contextualizedembeddings", inputs=[[text]], enable_auto_chunking=True)["data"]

    assert len(document["data"]) > 1
    assert "".join(chunk["text"] for chunk in document["data"]) == text


@pytest.mark.parametrize("fields", [{"chunk_size": 5}, {"enable_auto_chunking": True}])
def test_chunking_that_is_not_supported_is_refused(client: TestClient, fields: dict[str, Any]) -> None:
    body = {"inputs": [["the cat", "a bird"]], **fields}

    assert client.post("/v1/contextualizedembeddings", json=body).status_code == 400
