"""int8, uint8, binary, ubinary and base64 of every vendor's route are those of /v2/embed, bit by bit."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from cenote import LLM
from tests.api.app_client import make_client, post_json
from tests.factories import LLMFactory
from tests.tiny import tiny_bert

TEXTS = ["Follow the white rabbit.", "How deep is the cave?", "a red bird"]
NUMPY_TYPES = {"float": "<f4", "int8": "i1", "uint8": "u1", "binary": "i1", "ubinary": "u1"}
INTEGERS = ["int8", "uint8", "binary", "ubinary"]
VOYAGE = {"input_type": None, "truncation": True, "output_dimension": None}  # its client sends all fields
NIM = {"input_type": "passage", "truncate": "NONE"}
PARTS = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]

# route, fields for a dtype, and whether the reply is base64
FORMS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "output_dtype": ("/v1/embeddings", {"output_dtype": "DTYPE"}, False),
    "output_dtype in base64": ("/v1/embeddings", {"output_dtype": "DTYPE", "encoding_format": "base64"}, True),
    "voyage": ("/v1/embeddings", VOYAGE | {"output_dtype": "DTYPE", "encoding_format": None}, False),
    "voyage in base64": ("/v1/embeddings", VOYAGE | {"output_dtype": "DTYPE", "encoding_format": "base64"}, True),
    "voyage multimodal": ("/v1/multimodalembeddings", {"output_dtype": "DTYPE"}, False),
    "voyage multimodal in base64": (
        "/v1/multimodalembeddings",
        {"output_dtype": "DTYPE", "encoding_format": "base64"},
        True,
    ),
    "jina": ("/v1/embeddings", {"embedding_type": "DTYPE", "normalized": True}, False),
    "jina, a list": ("/v1/embeddings", {"embedding_type": ["DTYPE"]}, False),
    "jina in base64": ("/v1/embeddings", {"embedding_type": "DTYPE", "encoding_format": "base64"}, True),
    "jina of llama-index": ("/v1/embeddings", {"encoding_type": "DTYPE"}, False),
    "llama-index in base64": ("/v1/embeddings", {"encoding_type": "DTYPE", "encoding_format": "base64"}, True),
    "nvidia nim": ("/v1/embeddings", NIM | {"embedding_type": "DTYPE", "encoding_format": "float"}, False),
    "mixedbread": ("/v1/embeddings", {"encoding_format": "DTYPE", "normalized": True}, False),
    "azure": ("/openai/deployments/tiny/embeddings", {"output_dtype": "DTYPE"}, False),
}


@pytest.fixture(scope="module")
def client(shared_llm: LLMFactory) -> TestClient:
    return make_client(shared_llm(tiny_bert))


@pytest.fixture(scope="module")
def mini(llm: LLM) -> TestClient:
    return make_client(llm)


def embed(client: TestClient, path: str, fields: dict[str, Any]) -> list[Any]:
    inputs = {"inputs": PARTS} if "multimodal" in path else {"input": TEXTS}
    return [item["embedding"] for item in post_json(client, path, **inputs, **fields)["data"]]


def expect(client: TestClient, dtype: str) -> list[list[float]]:
    embeddings = post_json(client, "/v2/embed", texts=TEXTS, embedding_types=[dtype])["embeddings"]
    values: list[list[float]] = embeddings[dtype]
    return values


def decode(texts: list[str], dtype: str) -> list[list[float]]:
    return [np.frombuffer(b64decode(text, validate=True), NUMPY_TYPES[dtype]).tolist() for text in texts]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("form", FORMS)
def test_integers_are_those_of_cohere(client: TestClient, form: str, dtype: str) -> None:
    path, fields, is_base64 = FORMS[form]
    filled = {
        name: dtype if value == "DTYPE" else [dtype] if value == ["DTYPE"] else value for name, value in fields.items()
    }
    values = embed(client, path, filled)

    expected = expect(client, dtype)
    assert (decode(values, dtype) if is_base64 else values) == expected
    assert len(expected[0]) == (4 if "binary" in dtype else 32) and expected[0] != expected[1]


@pytest.mark.parametrize(("encoding", "dtype"), [("base64_int8", "int8"), ("base64_binary", "ubinary")])
def test_the_formats_of_perplexity_are_those_of_cohere(client: TestClient, encoding: str, dtype: str) -> None:
    values = embed(client, "/v1/embeddings", {"encoding_format": encoding})

    assert decode(values, dtype) == expect(client, dtype)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/embeddings", {"encoding_format": "base64", "endianness": "little"}),
        ("/v1/embeddings", {"embedding_type": "base64", "endianness": "little"}),
        ("/v1/embeddings", VOYAGE | {"output_dtype": "float", "encoding_format": "base64", "endianness": "little"}),
        ("/v1/multimodalembeddings", {"encoding_format": "base64"}),
    ],
)
def test_base64_is_that_of_cohere(client: TestClient, path: str, fields: dict[str, Any]) -> None:
    assert embed(client, path, fields) == expect(client, "base64")


@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_model_of_normalised_vectors_has_the_same_bits_on_every_route(mini: TestClient, dtype: str) -> None:
    expected = expect(mini, dtype)

    assert embed(mini, "/v1/embeddings", {"output_dtype": dtype}) == expected
    assert embed(mini, "/v1/embeddings", {"encoding_format": dtype}) == expected
    encoded = embed(mini, "/v1/multimodalembeddings", {"output_dtype": dtype, "encoding_format": "base64"})
    assert decode(encoded, dtype) == expected


def test_a_format_and_another_dtype_are_refused(client: TestClient) -> None:
    body = {"input": TEXTS, "encoding_format": "int8", "output_dtype": "uint8"}
    reply = client.post("/v1/embeddings", json=body)

    assert reply.status_code == 400 and reply.json()["param"] == "encoding_format"
    assert "int8 conflicts with output_dtype=uint8" in reply.json()["message"]
