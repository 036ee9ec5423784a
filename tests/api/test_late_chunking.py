"""Late chunking on /v1/embeddings: Jina's `late_chunking`, and `chunk_size` with the places of the chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.protocol.late_chunking import split_text
from tests.api.app_client import assert_refused, decode_base64, load_llm, make_client
from tests.tiny import change_config, tiny_bert

CHUNKS = ["the cat is in the city.", " a red bird, a blue fish", " who live in it?"]
TEXT = "".join(CHUNKS)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tmp_path_factory.mktemp("embedder")
    tiny_bert(folder)
    change_config(folder, matryoshka_dimensions=[8, 32])
    with load_llm(folder, pooler_config={"pooling_type": "MEAN"}) as llm:
        yield llm


@pytest.fixture(scope="module")
def client(llm: LLM) -> TestClient:
    return make_client(llm, max_request_items=10)


def post(client: TestClient, **fields: Any) -> dict[str, Any]:
    reply = client.post("/v1/embeddings", json={"input": CHUNKS, "late_chunking": True} | fields)
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    return body


def embed(llm: LLM, chunks: list[str]) -> Any:
    return [output.outputs.embedding for output in llm.embed(chunks, late_chunking=True, use_tqdm=False)]


def test_the_inputs_are_the_chunks_of_one_document(client: TestClient, llm: LLM) -> None:
    body = post(client)

    np.testing.assert_allclose([entry["embedding"] for entry in body["data"]], embed(llm, CHUNKS), atol=1e-6)
    assert [set(entry) for entry in body["data"]] == [{"index", "object", "embedding"}] * 3
    assert body["usage"]["prompt_tokens"] == llm.embed(TEXT, use_tqdm=False)[0].num_prompt_tokens
    objects = post(client, input=[{"text": chunk} for chunk in CHUNKS])
    assert objects["data"] == body["data"]
    alone = post(client, late_chunking=False)
    assert np.abs(np.array(alone["data"][1]["embedding"]) - body["data"][1]["embedding"]).max() > 1e-3


def test_formats_and_sizes_apply_to_chunks(client: TestClient) -> None:
    vectors = [entry["embedding"] for entry in post(client)["data"]]
    encoded = [decode_base64(entry["embedding"]) for entry in post(client, encoding_format="base64")["data"]]
    np.testing.assert_allclose(encoded, vectors, atol=1e-6)
    assert np.shape([entry["embedding"] for entry in post(client, dimensions=8)["data"]]) == (3, 8)
    integers = np.array([entry["embedding"] for entry in post(client, embedding_type="int8")["data"]])
    assert integers.shape == (3, 32) and integers.dtype.kind == "i"
    raw = np.array([entry["embedding"] for entry in post(client, normalized=False)["data"]])
    np.testing.assert_allclose(raw / np.linalg.norm(raw, axis=1, keepdims=True), vectors, atol=1e-5)
    binary = client.post(
        "/v1/embeddings", json={"input": CHUNKS, "late_chunking": True, "encoding_format": "bytes_only"}
    )
    np.testing.assert_allclose(np.frombuffer(binary.content, "<f4").reshape(3, 32), vectors, atol=1e-6)


@pytest.mark.parametrize("late_chunking", [True, None])
def test_one_text_is_split_and_entries_have_their_places(
    client: TestClient, llm: LLM, late_chunking: bool | None
) -> None:
    body = post(client, input=TEXT, late_chunking=late_chunking, chunk_size=24)

    places = split_text(TEXT, 24)
    assert [(entry["start"], entry["end"]) for entry in body["data"]] == places
    expected = embed(llm, [TEXT[start:end] for start, end in places])
    np.testing.assert_allclose([entry["embedding"] for entry in body["data"]], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "words", "param"),
    [
        ({"input": [[7, 8], [9]]}, "chunk 0 is list", "input"),
        ({"input": ["the cat", " "]}, "chunk 1 of the document has no tokens", "input"),
        ({"input": ["the cat "] * 10, "dimensions": 9}, "[8, 32]", None),
        ({"input": ["the cat is in the city "] * 10, "truncate": True}, "10 chunks have 62 tokens", "input_tokens"),
        ({"input": ["a"] * 11}, "limit 10", "input"),
        ({"input": "a " * 40, "chunk_size": 4}, "chunks of input has 20 items, limit 10", "chunks of input"),
        ({"return_token_counts": True}, "tokens are in usage", "return_token_counts"),
        ({"chunk_size": 20}, "got 3 inputs", "input"),
        ({"input": TEXT, "chunk_size": 20, "late_chunking": False}, "leave out late_chunking=false", "chunk_size"),
        ({"input": TEXT, "chunk_size": 20, "encoding_format": "bytes"}, "start and end", "encoding_format"),
    ],
)
def test_what_has_no_chunks_is_refused(client: TestClient, fields: dict[str, Any], words: str, param: str) -> None:
    limits = {"truncate_prompt_tokens": 50} if fields.pop("truncate", None) else {}
    assert_refused(
        client.post("/v1/embeddings", json={"input": CHUNKS, "late_chunking": True} | fields | limits), words, param
    )


def test_a_model_with_another_pooling_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("cls")
    tiny_bert(folder)
    with load_llm(folder) as llm:
        reply = make_client(llm).post("/v1/embeddings", json={"input": CHUNKS, "late_chunking": True})
        assert_refused(reply, "late_chunking needs MEAN pooling", "late_chunking")
