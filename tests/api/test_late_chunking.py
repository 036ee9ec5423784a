"""Late chunking on /v1/embeddings: Jina's `late_chunking`, `chunk_size` with the places of the chunks, and
vLLM's `late_chunking_params` with the matrices of token vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.protocol.late_chunking import split_text
from tests.api.app_client import assert_refused, decode_base64, load_llm, make_client, post_json
from tests.factories import LLMFactory
from tests.tiny import change_config, tiny_bert, tiny_bert_classifier

CHUNKS = ["the cat is in the city.", " a red bird, a blue fish", " who live in it?"]
TEXT = "".join(CHUNKS)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory, open_llm: LLMFactory) -> LLM:
    folder = tmp_path_factory.mktemp("embedder")
    tiny_bert(folder)
    change_config(folder, matryoshka_dimensions=[8, 32])
    return open_llm(folder, pooler_config={"pooling_type": "MEAN"})


@pytest.fixture(scope="module")
def client(llm: LLM) -> TestClient:
    return make_client(llm, max_request_items=10)


def post(client: TestClient, **fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = post_json(client, "/v1/embeddings", **{"input": CHUNKS, "late_chunking": True} | fields)
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


# chunks of a number of tokens, as in vLLM


@pytest.fixture(scope="module")
def token_client(shared_llm: LLMFactory) -> TestClient:
    return make_client(shared_llm(tiny_bert, pooler_config={"task": "token_embed"}))


def post_tokens(client: TestClient, path: str = "/v1/embeddings", **fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = post_json(client, path, **{"input": [TEXT, "two"]} | fields)
    return body


def test_a_server_with_the_task_token_embed_returns_a_matrix_for_every_input(token_client: TestClient) -> None:
    body = post_tokens(token_client)

    pooled = post_tokens(token_client, "/pooling", task="token_embed")
    assert [entry["embedding"] for entry in body["data"]] == [entry["data"] for entry in pooled["data"]]
    assert [set(entry) for entry in body["data"]] == [{"index", "object", "embedding"}] * 2
    assert body["usage"] == pooled["usage"]
    ids = post_tokens(token_client, input=[2, 5, 3])
    assert len(ids["data"][0]["embedding"]) == 3


def test_chunks_have_the_means_of_their_tokens_and_their_places(token_client: TestClient) -> None:
    tokens = post_tokens(token_client, use_activation=False)["data"]

    body = post_tokens(token_client, use_activation=False, late_chunking_params={"chunk_size": 4})

    assert body["usage"]["prompt_tokens"] == sum(len(entry["embedding"]) for entry in tokens)
    for entry, raw in zip(body["data"], tokens, strict=True):
        states = np.array(raw["embedding"])
        expected = [states[start : start + 4].mean(0) for start in range(0, len(states), 4)]
        np.testing.assert_allclose(entry["embedding"], expected, atol=1e-6)
    found = body["data"][1]["late_chunking"]
    assert found == {
        "strategy": "fixed_tokens",
        "chunk_size": 4,
        "input_tokens": 3,
        "chunks": [{"token_range": [0, 3], "char_range": [0, 3]}],
    }
    places = [chunk["char_range"] for chunk in body["data"][0]["late_chunking"]["chunks"]]
    assert [TEXT[slice(*place)] for place in places[:2]] == ["the cat is", "in the city."]


def test_a_chunk_of_special_tokens_has_no_place_in_the_text(token_client: TestClient) -> None:
    body = post_tokens(token_client, input="two", late_chunking_params={"chunk_size": 1})

    chunks = body["data"][0]["late_chunking"]["chunks"]
    assert [chunk["char_range"] for chunk in chunks] == [None, [0, 3], None]


def test_a_server_with_all_tasks_gives_chunks_where_a_request_asks_for_them(
    client: TestClient, token_client: TestClient
) -> None:
    fields: dict[str, Any] = {"late_chunking_params": {"chunk_size": 5}}

    expected = post_tokens(token_client, **fields)["data"]

    assert post_tokens(client, **fields)["data"] == expected
    pooled = post_tokens(client, "/pooling", **fields)["data"]
    assert [entry["data"] for entry in pooled] == [entry["embedding"] for entry in expected]
    assert [entry["late_chunking"] for entry in pooled] == [entry["late_chunking"] for entry in expected]
    assert isinstance(post_tokens(client)["data"][0]["embedding"][0], float)


def test_a_prompt_before_the_text_is_in_the_chunks_and_not_in_their_places(client: TestClient) -> None:
    fields: dict[str, Any] = {"input": "a red bird", "prompt": "who: ", "late_chunking_params": {"chunk_size": 3}}

    found = post_tokens(client, **fields)["data"][0]["late_chunking"]

    assert found["input_tokens"] == 7
    assert [chunk["char_range"] for chunk in found["chunks"]] == [None, [0, 10], None]


@pytest.mark.parametrize("chunk_size", [0, -1, 2**63, True, "5", 2.5, None])
def test_a_chunk_size_is_a_positive_integer(client: TestClient, token_client: TestClient, chunk_size: object) -> None:
    for server in (client, token_client):
        for path in ("/v1/embeddings", "/pooling"):
            body = {"input": TEXT, "late_chunking_params": {"chunk_size": chunk_size}}

            reply = server.post(path, json=body)

            assert reply.status_code == 400
            assert "late_chunking_params.chunk_size" in reply.json()["error"]["message"]


NO_TEXT = "Late chunking requires nonempty plain-text input"
NO_CHANGES = "Late chunking does not support input padding, truncation or renderer text normalization"


@pytest.mark.parametrize(
    ("fields", "words", "param"),
    [
        ({"input": [2, 5, 3]}, NO_TEXT, "input"),
        ({"input": ["two", ""]}, NO_TEXT, "input"),
        ({"truncate_prompt_tokens": 4}, NO_CHANGES, "late_chunking_params"),
        ({"truncate": "END"}, NO_CHANGES, "late_chunking_params"),
        ({"encoding_format": "base64"}, "encoding_format=base64 is not supported here", "encoding_format"),
        ({"encoding_format": "int8"}, "encoding_format=int8 is not supported here", "encoding_format"),
        ({"output_dtype": "int8"}, "returned as float, not as int8", "output_dtype"),
        ({"late_chunking": True}, "set one of them", "late_chunking_params"),
        ({"chunk_size": 20}, "set one of them", "late_chunking_params"),
        ({"input": "two " * 600}, "maximum context length is", "input_text"),
    ],
)
def test_requests_that_have_no_such_chunks_are_refused(
    client: TestClient, token_client: TestClient, fields: dict[str, Any], words: str, param: str
) -> None:
    body = {"input": TEXT, "late_chunking_params": {"chunk_size": 5}} | fields

    for server in (client, token_client):
        assert_refused(server.post("/v1/embeddings", json=body), words, param)


def test_other_tasks_have_no_chunks_of_tokens(client: TestClient, tmp_path: Any) -> None:
    body: dict[str, Any] = {"input": TEXT, "late_chunking_params": {"chunk_size": 5}}
    tiny_bert_classifier(tmp_path, num_labels=2)

    reply = client.post("/pooling", json=body | {"task": "embed"})

    assert_refused(reply, "Late chunking requires token_embed", "late_chunking_params")
    with load_llm(tmp_path) as classifier:
        refused = make_client(classifier).post("/v1/embeddings", json=body)
        assert "does not support Embeddings API" in refused.json()["error"]["message"]


def test_v2_embed_does_not_exist_with_the_task_token_embed(token_client: TestClient) -> None:
    reply = token_client.post("/v2/embed", json={"model": "tiny", "texts": ["two"], "input_type": "search_query"})

    assert reply.status_code == 404


def test_chunks_are_counted_before_a_text_is_split(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cenote.api.late_chunking.split_document", lambda *_: pytest.fail("it was split"))

    reply = client.post("/v1/embeddings", json={"input": "a" * 100_000, "chunk_size": 1})

    assert_refused(reply, "chunks of input has 100000 items, limit 10", "chunks of input")
