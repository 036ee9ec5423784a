"""Fields of several vendors on /v1/embeddings and /rerank change the answer as they say, or are refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.dialects.openai import EmbeddingsBody
from cenote.api.dialects.rerank import RerankBody
from cenote.api.model_names import list_source_names
from cenote.config.engine import DEFAULT_MODEL
from tests.api.app_client import assert_refused, make_client, null_fields, post_json
from tests.factories import LLMFactory
from tests.tiny import change_config, tiny_bert, tiny_cross_encoder

TEXTS = ["Follow the white rabbit.", "How deep is the cave?"]
LONG = "the cat is in the city " * 80


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, open_llm: LLMFactory) -> TestClient:
    """A Matryoshka model with vectors of 32 numbers, and no chat template."""
    folder = tmp_path_factory.mktemp("embedder")
    tiny_bert(folder)
    change_config(folder, matryoshka_dimensions=[8, 32])
    return make_client(open_llm(folder))


@pytest.fixture(scope="module")
def cross_encoder(shared_llm: LLMFactory) -> LLM:
    return shared_llm(tiny_cross_encoder)


def embed(client: TestClient, **fields: Any) -> list[Any]:
    data = post_json(client, "/v1/embeddings", **{"input": TEXTS} | fields)["data"]
    return [entry["embedding"] for entry in data]


@pytest.mark.parametrize(
    ("fields", "words", "param"),
    [
        ({"embedding_type": ["int8", "float"]}, "has 2 items", "embedding_type"),
        ({"embedding_type": "int8", "output_dtype": "uint8"}, "int8, uint8", "embedding_type"),
        ({"output_dtype": "int8", "encoding_format": "bytes"}, "int8", "encoding_format"),
        ({"return_multivector": True}, "token_embed", "return_multivector"),
        ({"normalized": False, "normalize": True}, "alias of normalize", "normalized"),
        ({"output_dimension": 8, "dimensions": 32}, "8 and 32", "output_dimension"),
        ({"output_dimension": 9}, "[8, 32]", None),
    ],
)
def test_what_cannot_be_returned_is_refused(
    client: TestClient, fields: dict[str, Any], words: str, param: str | None
) -> None:
    reply = client.post("/v1/embeddings", json={"input": TEXTS} | fields)

    assert reply.status_code == 400 and words in reply.json()["message"]
    assert param is None or reply.json()["param"] == param


def test_the_dimension_and_normalisation_have_aliases(client: TestClient) -> None:
    assert embed(client, output_dimension=8) == embed(client, dimensions=8)
    raw = embed(client, normalized=False)
    assert raw == embed(client, normalize=False)
    assert not np.allclose(np.linalg.norm(raw, axis=1), 1, atol=1e-2)


@pytest.mark.parametrize("fields", [{"truncate": True}, {"truncation": True}, {"truncate": "END"}])
def test_truncation_fields_cut_long_texts(client: TestClient, fields: dict[str, Any]) -> None:
    assert embed(client, input=LONG, **fields) == embed(client, input=LONG, truncate_prompt_tokens=-1)


def test_start_cuts_the_start(client: TestClient) -> None:
    expected = embed(client, input=LONG, truncate_prompt_tokens=-1, truncation_side="left")

    assert embed(client, input=LONG, truncate="START") == expected


def test_long_texts_are_cut_by_auto_truncate_unless_the_request_refuses(cross_encoder: LLM, llm: LLM) -> None:
    client = make_client(llm, auto_truncate=True)
    body = {"input": LONG * 4}

    assert client.post("/v1/embeddings", json=body).headers["x-truncated-inputs"] == "1"
    for fields in ({"truncate": False}, {"truncate": "NONE"}, {"truncation": False}):
        assert client.post("/v1/embeddings", json=body | fields).status_code == 400
    assert make_client(llm).post("/v1/embeddings", json=body).status_code == 400
    pairs = {"query": "a", "documents": [LONG]}
    assert make_client(cross_encoder).post("/rerank", json=pairs).status_code == 400
    assert make_client(cross_encoder, auto_truncate=True).post("/rerank", json=pairs).status_code == 200


def test_the_rerank_routes_of_cohere_and_jina_cut_long_documents(cross_encoder: LLM) -> None:
    client = make_client(cross_encoder)
    body = {"query": "a cat", "documents": [LONG, "a"]}

    for path in ("/v1/rerank", "/v2/rerank"):
        assert client.post(path, json=body).headers["x-truncated-inputs"] == "1"
        assert client.post(path, json=body | {"truncation": False}).status_code == 400
    assert client.post("/rerank", json=body).status_code == 400
    assert client.post("/rerank", json=body | {"max_chunks_per_doc": 10}).status_code == 200
    assert client.post("/rerank", json=body | {"truncation": True}).status_code == 200


def test_raw_scores_selects_logits_or_probabilities(cross_encoder: LLM) -> None:
    client = make_client(cross_encoder)

    def scores(**fields: Any) -> dict[int, float]:
        body = {"query": "a cat", "documents": ["a dog", "the river", "a cat"]} | fields
        results = client.post("/rerank", json=body).json()["results"]
        return {result["index"]: result["relevance_score"] for result in results}

    logits, probabilities = scores(raw_scores=True), scores(raw_scores=False)
    assert logits == pytest.approx(scores(use_activation=False))
    assert probabilities == pytest.approx({index: 1 / (1 + math.exp(-value)) for index, value in logits.items()})
    assert list(logits) == list(probabilities)


def test_the_document_shape_concerns_only_the_unversioned_route(cross_encoder: LLM) -> None:
    client = make_client(cross_encoder, rerank_document_shape="string")
    shown = {
        path: client.post(path, json={"query": "a", "documents": ["a"]}).json()["results"][0]["document"]
        for path in ("/rerank", "/v1/rerank", "/v2/rerank")
    }

    document = {"text": "a", "multi_modal": None}
    assert shown == {"/rerank": "a", "/v1/rerank": document, "/v2/rerank": document}


@pytest.mark.parametrize(
    "input_", [[{"text": text} for text in TEXTS], [TEXTS[0], {"text": TEXTS[1]}], [{"text": TEXTS[0]}, TEXTS[1]]]
)
def test_objects_with_texts_are_read_as_texts(client: TestClient, input_: Any) -> None:
    assert np.allclose(embed(client, input=input_), embed(client))
    assert np.allclose(embed(client, input={"text": TEXTS[0]}), embed(client, input=TEXTS[0]))


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling"])
@pytest.mark.parametrize("content", [str, lambda text: [{"type": "text", "text": text}], lambda text: [text]])
def test_objects_with_text_content_are_read_as_texts(client: TestClient, path: str, content: Any) -> None:
    body = {"task": "embed"} if path == "/pooling" else {}

    replies = [
        client.post(path, json=body | {"input": inputs})
        for inputs in (TEXTS, [{"content": content(text)} for text in TEXTS], {"content": content(TEXTS[0])})
    ]

    texts, objects, single = (reply.json()["data"] for reply in replies)
    assert objects == texts and single == texts[:1]


def test_parts_of_a_content_are_one_text(client: TestClient) -> None:
    parts = [{"type": "text", "text": "the old"}, {"type": "text", "text": "city"}]

    assert np.allclose(embed(client, input=[{"content": parts}]), embed(client, input=["the old\ncity"]))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([{"type": "image_url", "image_url": {"url": "data:,"}}], "input.0.content.0 is of type 'image_url'"),
        ([{"type": "text"}], "input.0.content.0.text: expected a text"),
        ([], "input.0.content: expected a text or a list of parts"),
        (5, "input.0.content: expected a text or a list of parts"),
    ],
)
def test_other_content_of_an_object_is_refused(client: TestClient, content: Any, words: str) -> None:
    reply = client.post("/v1/embeddings", json={"input": [{"content": content}]})

    assert reply.status_code == 400 and words in reply.json()["error"]["message"]


def test_an_object_with_an_image_is_refused_by_a_text_model(client: TestClient) -> None:
    reply = client.post("/v1/embeddings", json={"input": [{"image": "data:image/png;base64,AA=="}]})

    assert_refused(reply, "input.0", "body.input.0")


def test_a_user_message_without_a_chat_template_is_its_text(client: TestClient) -> None:
    chats = [[{"role": "user", "content": [{"type": "text", "text": text}]}] for text in TEXTS]

    assert np.allclose(embed(client, input=None, messages=chats), embed(client))
    single = embed(client, input=None, messages=[{"role": "user", "content": TEXTS[0]}])
    assert np.allclose(single, embed(client, input=TEXTS[0]))
    reply = client.post("/v1/embeddings", json={"messages": [{"role": "system", "content": "a"}]})
    assert reply.status_code == 400 and "chat template" in reply.text


def test_a_request_without_a_content_type_is_read(client: TestClient) -> None:
    assert client.post("/v1/embeddings", content=b'{"input": "a"}').status_code == 200


def test_models_answer_to_their_hub_name_folder_and_suffixes(llm: LLM, tmp_path: Path) -> None:
    client = make_client(llm)

    for name in ("mini", "mini:latest", "mini-query", "mini-passage"):
        assert client.post("/v1/embeddings", json={"input": "a", "model": name}).status_code == 200, name
    assert {"all-MiniLM-L6-v2", DEFAULT_MODEL} <= list_source_names(DEFAULT_MODEL)
    tiny_bert(tmp_path / "my-model")
    with LLM(str(tmp_path / "my-model"), dtype="float32", device="cpu") as folder_llm:
        client = make_client(folder_llm)
        for name in ("my-model", str(tmp_path / "my-model")):
            assert client.post("/v1/embeddings", json={"input": "a", "model": name}).status_code == 200, name


@pytest.mark.parametrize(
    ("path", "body", "name", "field"),
    [
        ("/v1/embeddings", {"input": "a"}, "dimenson", "dimensions"),
        ("/v1/embeddings", {"input": "a"}, "dimension", "dimensions"),
        ("/v1/embeddings", {"input": "a"}, "encodingFormat", "encoding_format"),
        ("/v1/embeddings", {"input": "a"}, "promt_name", "prompt_name"),
        ("/pooling", {"input": "a"}, "truncate_promt_tokens", "truncate_prompt_tokens"),
        ("/pooling", {"input": "a"}, "taks", "task"),
        ("/rerank", {"query": "a", "documents": ["a"]}, "topN", "top_n"),
        ("/v2/embed", {"texts": ["a"], "input_type": "search_query"}, "embeding_types", "embedding_types"),
        ("/invocations", {"input": "a"}, "dimenson", "dimensions"),
    ],
)
def test_a_misspelt_field_is_refused(path: str, body: dict[str, Any], name: str, field: str, llm: LLM) -> None:
    client = make_client(llm)

    reply = client.post(path, json={**body, name: 8})

    assert reply.status_code == 400
    assert f"unknown field `{name}`: did you mean `{field}`?" in reply.json()["message"]
    assert client.post(path, json={**body, name: None}).status_code == 200  # as clients send unset fields


OTHER_NAMES = (
    "no_such_field usr modle prioritty inputs text top_k top_n truncation normalized output_dimension metadata "
    "models embeddingTypes inputText taskType outputDimensionality return_embeddings max_query_length overlap_tokens "
    "max_chunks_per_doc rewrite_query modality provider usage late_chunking embedding_type litellm_call_id extra_body "
    "max_length activation_fn input_ids keep_alive service_tier store transforms image images instruct wait_for_model"
)


@pytest.mark.parametrize(
    ("path", "body", "body_type"),
    [
        ("/v1/embeddings", {"input": "a"}, EmbeddingsBody),
        ("/rerank", {"query": "a", "documents": ["a"]}, RerankBody),
    ],
)
def test_fields_of_other_apis_and_other_unknown_fields_are_ignored(
    path: str, body: dict[str, Any], body_type: type[msgspec.Struct], llm: LLM
) -> None:
    others = {name: "x" for name in OTHER_NAMES.split() if name not in body | null_fields(body_type)}

    reply = make_client(llm).post(path, json=body | others)

    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(
    ("path", "body", "name", "field"),
    [
        ("/v1/embeddings", {"inputs": "a"}, "inputs", "input"),
        ("/rerank", {"query": "a", "document": ["a"]}, "document", "documents"),
        ("/rerank", {"querry": "a", "documents": ["a"]}, "querry", "query"),
        ("/tokenize", {"promt": "a"}, "promt", "prompt"),
    ],
)
def test_the_error_for_a_missing_field_names_the_one_that_was_meant(
    path: str, body: dict[str, Any], name: str, field: str, llm: LLM
) -> None:
    reply = make_client(llm).post(path, json=body)

    assert reply.status_code == 400
    assert f"`{name}`" in reply.json()["message"] and f"did you mean `{field}`?" in reply.json()["message"]
