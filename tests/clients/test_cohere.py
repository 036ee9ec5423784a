"""cohere: versions 1 and 2 of embed and rerank. The client appends /v1 or /v2 to the base URL itself."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import cohere
import numpy as np
import pytest

from tests.api.image_helpers import CAT, data_uri
from tests.clients.conftest import DOCUMENTS, KEY, PROMPTS, QUERY, TEXTS, RunningServer, is_close
from tests.models.tiny_qwen3_vl import IMAGE

# version 1 merges responses with deprecated methods of pydantic
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecationWarning:cohere")

TYPES = ["float", "int8", "uint8", "binary", "ubinary", "base64"]


@pytest.fixture(params=["1", "2"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def connect(server: RunningServer, version: str, key: str = "sk-fake-key") -> Any:
    client_class = cohere.Client if version == "1" else cohere.ClientV2
    return client_class(base_url=server.url, api_key=key)


@pytest.fixture
def client(embedder: RunningServer, version: str) -> Iterator[Any]:
    with connect(embedder, version) as client:
        yield client


@pytest.fixture
def rerank_client(reranker: RunningServer, version: str) -> Iterator[Any]:
    with connect(reranker, version) as client:
        yield client


def test_every_embedding_type_encodes_the_same_vectors(client: Any, embedder: RunningServer) -> None:
    reply = client.embed(texts=TEXTS, model="mini", input_type="search_document", embedding_types=TYPES)

    expected = embedder.embed(TEXTS)
    embeddings = reply.embeddings
    assert is_close(embeddings.float_, expected)
    assert is_close([np.frombuffer(b64decode(text), dtype="<f4") for text in embeddings.base64], expected)
    assert np.abs(np.array(embeddings.int8) - expected * 127).max() < 0.51
    assert np.abs(np.array(embeddings.uint8) - (expected + 1) * 127.5).max() < 0.51
    signs = np.unpackbits(np.array(embeddings.ubinary, dtype=np.uint8), axis=1)
    assert (signs == (expected >= 0))[np.abs(expected) > 1e-5].all()
    assert (np.array(embeddings.binary) == np.array(embeddings.ubinary) - 128).all()


def test_the_reply_reports_billed_tokens(client: Any, embedder: RunningServer, version: str) -> None:
    reply = client.embed(texts=TEXTS, model="mini", input_type="search_document", embedding_types=["float"])

    assert reply.texts == TEXTS and reply.id
    assert reply.meta.api_version.version == version
    assert reply.meta.billed_units.input_tokens == embedder.num_tokens(TEXTS)


@pytest.mark.parametrize(("input_type", "prompt"), [("search_query", "query"), ("search_document", "document")])
def test_the_input_type_selects_the_prompt_of_the_model(
    protected_server: RunningServer, version: str, input_type: Any, prompt: str
) -> None:
    with connect(protected_server, version, KEY) as client:
        reply = client.embed(texts=TEXTS, model="tiny", input_type=input_type, embedding_types=["float"])

    expected = protected_server.embed(TEXTS, prompt=PROMPTS[prompt])
    assert is_close(reply.embeddings.float_, expected)
    assert not is_close(expected, protected_server.embed(TEXTS))


def test_rerank_sorts_by_score_descending(rerank_client: Any, reranker: RunningServer, version: str) -> None:
    reply = rerank_client.rerank(model="pairs", query=QUERY, documents=DOCUMENTS)

    scores = reranker.score(QUERY, DOCUMENTS)
    assert [result.index for result in reply.results] == sorted(range(4), key=lambda index: -scores[index])
    assert is_close([result.relevance_score for result in reply.results], sorted(scores, reverse=True))
    assert len(set(np.round(scores, 4))) == 4
    assert reply.meta.api_version.version == version and reply.meta.billed_units.search_units == 1


def test_errors_are_raised_as_cohere_exceptions(protected_server: RunningServer, version: str) -> None:
    with connect(protected_server, version, KEY) as client, pytest.raises(cohere.NotFoundError) as unknown:
        client.embed(texts=["a"], model="embed-v4.0", input_type="search_query", embedding_types=["float"])
    with connect(protected_server, version, "wrong") as client, pytest.raises(cohere.UnauthorizedError):
        client.rerank(model="tiny", query="a", documents=["b"])
    with connect(protected_server, version, KEY) as client, pytest.raises(cohere.BadRequestError, match="input_type"):
        client.embed(texts=["a"], model="tiny", input_type="rhyme", embedding_types=["float"])

    assert "The model `embed-v4.0` does not exist." in str(unknown.value.body)


def embed_multimodal(server: RunningServer, text: str, *images: Any) -> Any:
    prompt = {"prompt": f"<|im_start|>user\n{text}<|im_end|>\n", "multi_modal_data": {"image": list(images)}}
    return server.embed(prompt, tokenization_kwargs={"add_special_tokens": False})


def test_images_are_embedded(multimodal_embedder: RunningServer, version: str) -> None:
    with connect(multimodal_embedder, version) as client:
        reply = client.embed(
            images=[data_uri(CAT)], model="tiny-vl", input_type="image", embedding_types=["float", "ubinary"]
        )
        with pytest.raises(cohere.BadRequestError) as refused:
            client.embed(
                images=["data:image/png;base64,"], model="tiny-vl", input_type="image", embedding_types=["float"]
            )

    assert is_close(reply.embeddings.float_, embed_multimodal(multimodal_embedder, IMAGE, CAT))
    assert reply.meta.billed_units.images == 1 and reply.meta.billed_units.image_tokens > 1
    assert refused.value.body["message"].startswith("images[0]: ")
