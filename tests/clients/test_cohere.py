"""cohere: versions 1 and 2 of embed and rerank. The client appends /v1 or /v2 to the base URL itself."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import cohere
import numpy as np
import pytest

from tests.api.image_helpers import CAT, DOG, data_uri, image_part, text_part
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


def test_version_1_without_a_type_has_plain_vectors(embedder: RunningServer) -> None:
    with connect(embedder, "1") as client:
        reply = client.embed(texts=TEXTS, model="mini", input_type="classification")

    assert reply.response_type == "embeddings_floats"
    assert is_close(reply.embeddings, embedder.embed(TEXTS))


def test_version_1_sends_many_texts_in_several_requests_and_keeps_their_order(embedder: RunningServer) -> None:
    texts = [f"cave number {number}" for number in range(200)]
    with connect(embedder, "1") as client:
        reply = client.embed(texts=texts, model="mini", input_type="clustering")

    assert is_close(reply.embeddings, embedder.embed(texts))
    assert reply.meta.billed_units.input_tokens == embedder.num_tokens(texts)


def test_version_2_supports_output_dimension_and_content_parts(embedder: RunningServer) -> None:
    parts: Any = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
    with connect(embedder, "2") as client:
        reply = client.embed(
            inputs=parts, model="mini", input_type="search_document", output_dimension=64, embedding_types=["float"]
        )

    truncated = embedder.embed(TEXTS)[:, :64]
    assert is_close(reply.embeddings.float_, truncated / np.linalg.norm(truncated, axis=1, keepdims=True))


def test_long_texts_are_truncated_at_the_end_by_default(client: Any, embedder: RunningServer) -> None:
    long = "first " + "deep water " * 300 + "last"
    options = {"model": "mini", "input_type": "search_document", "embedding_types": ["float"]}

    at_end = client.embed(texts=[long], **options)
    at_start = client.embed(texts=[long], truncate="START", **options)

    ids = embedder.ids(long)
    truncated = [[*ids[:255], ids[-1]], ids[-256:]]
    expected = embedder.embed([{"prompt_token_ids": token_ids} for token_ids in truncated])
    assert is_close(at_end.embeddings.float_, expected[:1])
    assert is_close(at_start.embeddings.float_, expected[1:])
    assert at_end.meta.warnings and at_end.meta.billed_units.input_tokens == 256
    with pytest.raises(cohere.BadRequestError):
        client.embed(texts=[long], truncate="NONE", **options)


def test_rerank_sorts_by_score_descending(rerank_client: Any, reranker: RunningServer, version: str) -> None:
    reply = rerank_client.rerank(model="pairs", query=QUERY, documents=DOCUMENTS)

    scores = reranker.score(QUERY, DOCUMENTS)
    assert [result.index for result in reply.results] == sorted(range(4), key=lambda index: -scores[index])
    assert is_close([result.relevance_score for result in reply.results], sorted(scores, reverse=True))
    assert len(set(np.round(scores, 4))) == 4
    assert reply.meta.api_version.version == version and reply.meta.billed_units.search_units == 1


def test_rerank_returns_top_n_results(rerank_client: Any, reranker: RunningServer) -> None:
    reply = rerank_client.rerank(model="pairs", query=QUERY, documents=DOCUMENTS, top_n=2)

    scores = reranker.score(QUERY, DOCUMENTS)
    assert [result.index for result in reply.results] == sorted(range(4), key=lambda index: -scores[index])[:2]


def test_version_1_returns_documents_as_they_were_sent(reranker: RunningServer) -> None:
    documents = [{"text": text, "title": f"number {index}"} for index, text in enumerate(DOCUMENTS)]
    with connect(reranker, "1") as client:
        texts = client.rerank(model="pairs", query=QUERY, documents=DOCUMENTS, return_documents=True)
        objects = client.rerank(model="pairs", query=QUERY, documents=documents, return_documents=True)
        without = client.rerank(model="pairs", query=QUERY, documents=DOCUMENTS, return_documents=False)

    scores = sorted(reranker.score(QUERY, DOCUMENTS), reverse=True)
    for reply in (texts, objects, without):
        assert is_close([result.relevance_score for result in reply.results], scores)
    assert [result.document.text for result in texts.results] == [DOCUMENTS[result.index] for result in texts.results]
    for result in objects.results:
        assert result.document.dict() == documents[result.index] | {"multi_modal": None}
    assert all(result.document is None for result in without.results)


def test_version_1_reranks_by_rank_fields(reranker: RunningServer) -> None:
    documents = [{"title": text, "body": "the same", "number": str(index)} for index, text in enumerate(DOCUMENTS)]
    with connect(reranker, "1") as client:
        one = client.rerank(model="pairs", query=QUERY, documents=documents, rank_fields=["title"])
        two = client.rerank(model="pairs", query=QUERY, documents=documents, rank_fields=["title", "body"])

    assert is_close(
        [result.relevance_score for result in one.results], sorted(reranker.score(QUERY, DOCUMENTS), reverse=True)
    )
    lines = [f"title: {text}\nbody: the same" for text in DOCUMENTS]
    assert is_close(
        [result.relevance_score for result in two.results], sorted(reranker.score(QUERY, lines), reverse=True)
    )


def test_version_2_truncates_documents_to_max_tokens_per_doc(reranker: RunningServer) -> None:
    with connect(reranker, "2") as client:
        reply = client.rerank(model="pairs", query=QUERY, documents=DOCUMENTS, max_tokens_per_doc=3)

    truncated = [" ".join(text.split()[:3]) for text in DOCUMENTS]  # one token for each of these words
    assert is_close(
        [result.relevance_score for result in reply.results], sorted(reranker.score(QUERY, truncated), reverse=True)
    )


def test_version_2_truncates_documents_to_the_maximum_length_of_the_model(reranker: RunningServer) -> None:
    documents = ["the old city " * 500, "a bird"]
    with connect(reranker, "2") as client:
        reply = client.rerank(model="pairs", query=QUERY, documents=documents, max_tokens_per_doc=4096)

    assert sorted(result.index for result in reply.results) == [0, 1]
    assert reply.meta.warnings and not any("traceback" in warning for warning in reply.meta.warnings)


def test_a_real_cross_encoder_ranks_the_documented_example(cross_encoder: RunningServer, version: str) -> None:
    query = "What is the capital of France?"
    documents = ["Reranking is fun!", "The capital of France is Paris", "vLLM is an open-source framework"]
    with connect(cross_encoder, version) as client:
        reply = client.rerank(model=cross_encoder.model, query=query, documents=documents)

    assert reply.results[0].index == 1
    scores = cross_encoder.score(query, documents)
    assert is_close([result.relevance_score for result in reply.results], sorted(scores, reverse=True))


def test_errors_are_raised_as_cohere_exceptions(protected_server: RunningServer, version: str) -> None:
    with connect(protected_server, version, KEY) as client, pytest.raises(cohere.NotFoundError) as unknown:
        client.embed(texts=["a"], model="embed-v4.0", input_type="search_query", embedding_types=["float"])
    with connect(protected_server, version, "wrong") as client, pytest.raises(cohere.UnauthorizedError):
        client.rerank(model="tiny", query="a", documents=["b"])
    with connect(protected_server, version, KEY) as client, pytest.raises(cohere.BadRequestError, match="input_type"):
        client.embed(texts=["a"], model="tiny", input_type="rhyme", embedding_types=["float"])

    assert "The model `embed-v4.0` does not exist." in str(unknown.value.body)


def test_concurrent_async_calls_get_their_own_results(reranker: RunningServer) -> None:
    async def rerank_concurrently() -> list[Any]:
        async with cohere.AsyncClientV2(base_url=reranker.url, api_key="sk-fake-key") as client:
            calls = (client.rerank(model="pairs", query=query, documents=DOCUMENTS) for query in DOCUMENTS)
            return list(await asyncio.gather(*calls))

    for query, reply in zip(DOCUMENTS, asyncio.run(rerank_concurrently()), strict=True):
        scores = reranker.score(query, DOCUMENTS)
        assert is_close([result.relevance_score for result in reply.results], sorted(scores, reverse=True))


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


def test_texts_and_images_are_embedded_together(multimodal_embedder: RunningServer) -> None:
    parts = [text_part("the cat"), image_part(CAT), image_part(DOG)]
    with connect(multimodal_embedder, "2") as client:
        reply = client.embed(
            inputs=[{"content": parts}], model="tiny-vl", input_type="search_document", embedding_types=["float"]
        )

    assert is_close(reply.embeddings.float_, embed_multimodal(multimodal_embedder, f"the cat{IMAGE}{IMAGE}", CAT, DOG))
