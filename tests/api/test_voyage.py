"""Voyage's routes: dtypes of embeddings as in /v2/embed, rerank results in `data`, and Perplexity's encodings."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from cenote import LLM

TEXTS = ["the cat is in the city", "a red bird"]
LONG_TEXT = "river " * 400
NUMPY_TYPES = {"float": "<f4", "int8": "i1", "uint8": "u1", "binary": "i1", "ubinary": "u1"}
# the client sends all fields
FIELDS = dict.fromkeys(["input_type", "output_dtype", "output_dimension", "encoding_format"]) | {"truncation": True}


@pytest.fixture(scope="module")
def by_type(client: TestClient) -> dict[str, list[list[float]]]:
    body = {"texts": TEXTS, "embedding_types": list(NUMPY_TYPES)}
    embeddings: dict[str, list[list[float]]] = client.post("/v2/embed", json=body).json()["embeddings"]
    return embeddings


def post(client: TestClient, path: str, **body: Any) -> dict[str, Any]:
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_every_dtype_equals_that_of_cohere(client: TestClient, by_type: Any, dtype: str) -> None:
    body = FIELDS | {"input": TEXTS, "model": "mini", "output_dtype": dtype}

    numbers = post(client, "/v1/embeddings", **body)
    strings = post(client, "/v1/embeddings", **body | {"encoding_format": "base64"})

    assert [item["embedding"] for item in numbers["data"]] == by_type[dtype]
    assert numbers["usage"]["total_tokens"] > 0 and numbers["object"] == "list"
    for item, values in zip(strings["data"], by_type[dtype], strict=True):
        decoded = np.frombuffer(base64.b64decode(item["embedding"]), dtype=NUMPY_TYPES[dtype])
        np.testing.assert_array_equal(decoded, np.array(values, dtype=NUMPY_TYPES[dtype]))


@pytest.mark.parametrize(("encoding", "dtype"), [("base64_int8", "int8"), ("base64_binary", "ubinary")])
def test_encodings_of_perplexity_equal_the_dtypes_of_cohere(
    client: TestClient, by_type: Any, encoding: str, dtype: str
) -> None:
    reply = post(client, "/v1/embeddings", input=TEXTS, encoding_format=encoding)

    decoded = [np.frombuffer(base64.b64decode(item["embedding"]), NUMPY_TYPES[dtype]) for item in reply["data"]]
    np.testing.assert_array_equal(np.stack(decoded), by_type[dtype])


def test_long_texts_are_truncated_unless_truncation_is_false(client: TestClient) -> None:
    assert post(client, "/v1/embeddings", input=LONG_TEXT, truncation=True)["usage"]["total_tokens"] == 256

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
    expected = post(client, "/v2/rerank", **body)["results"]

    reply = post(client, "/v1/rerank", **body, top_k=2, truncation=True)

    ranked = [(item["index"], item["relevance_score"]) for item in expected[:2]]
    assert [(item["index"], item["relevance_score"]) for item in reply["data"]] == ranked
    assert reply["results"] == expected[:2] and reply["usage"]["total_tokens"] > 0
    assert "document" not in reply["data"][0]
    shown = post(client, "/v1/rerank", **body, top_k=None, truncation=True, return_documents=True)
    assert [item["document"] for item in shown["data"]] == [body["documents"][item["index"]] for item in expected]
    assert client.post("/v1/rerank", json=body | {"truncation": False}).status_code == 400


def test_rerank_has_data_also_if_the_client_sends_only_the_required_fields(client: TestClient) -> None:
    """The JavaScript client sends no field that only Voyage has."""
    reply = post(client, "/v1/rerank", query="which bird is red?", documents=TEXTS, model="mini")

    ranked = [(item["index"], item["relevance_score"]) for item in reply["results"]]
    assert [(item["index"], item["relevance_score"]) for item in reply["data"]] == ranked
    assert reply["object"] == "list" and reply["results"][0]["document"]["text"] in TEXTS


def test_multimodal_inputs_of_text_are_embedded(client: TestClient, by_type: Any) -> None:
    inputs = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]

    reply = post(client, "/v1/multimodalembeddings", inputs=inputs, model="mini", truncation=True, input_type=None)

    np.testing.assert_allclose([item["embedding"] for item in reply["data"]], by_type["float"], atol=1e-6)
    assert reply["usage"].keys() == {"text_tokens", "image_pixels", "video_pixels", "total_tokens"}
    encoded = post(client, "/v1/multimodalembeddings", inputs=inputs, output_dtype="int8", encoding_format="base64")
    decoded = [np.frombuffer(base64.b64decode(item["embedding"]), "i1") for item in encoded["data"]]
    np.testing.assert_array_equal(np.stack(decoded), by_type["int8"])


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

    answer = post(client, "/v1/contextualizedembeddings", inputs=documents, input_type=None)

    expected = [output.outputs.embedding for output in llm.embed(documents, late_chunking=True, use_tqdm=False)]
    found = [chunk["embedding"] for document in answer["data"] for chunk in document["data"]]
    assert np.allclose(found, expected, atol=1e-6)
    assert [len(document["data"]) for document in answer["data"]] == [2, 1]
    assert answer["usage"]["total_tokens"] > 0


def test_whole_documents_are_split_and_their_chunks_returned(client: TestClient) -> None:
    text = "understanding international " * 50

    (document,) = post(client, "/v1/contextualizedembeddings", inputs=[[text]], enable_auto_chunking=True)["data"]

    assert len(document["data"]) > 1
    assert "".join(chunk["text"] for chunk in document["data"]) == text


@pytest.mark.parametrize("fields", [{"chunk_size": 5}, {"enable_auto_chunking": True}])
def test_chunking_that_is_not_supported_is_refused(client: TestClient, fields: dict[str, Any]) -> None:
    body = {"inputs": [["the cat", "a bird"]], **fields}

    assert client.post("/v1/contextualizedembeddings", json=body).status_code == 400
