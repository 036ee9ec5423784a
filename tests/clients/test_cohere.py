"""cohere: both versions of embed and rerank. Its address has no /v1, it adds that itself."""

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

# its version 1 joins replies by methods that pydantic is about to drop
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecationWarning:cohere")

TYPES = ["float", "int8", "uint8", "binary", "ubinary", "base64"]


@pytest.fixture(params=["1", "2"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def connect(server: RunningServer, version: str, key: str = "sk-fake-key") -> Any:
    kind = cohere.Client if version == "1" else cohere.ClientV2
    return kind(base_url=server.url, api_key=key)


@pytest.fixture
def client(embedder: RunningServer, version: str) -> Iterator[Any]:
    with connect(embedder, version) as client:
        yield client


@pytest.fixture
def ranking(reranker: RunningServer, version: str) -> Iterator[Any]:
    with connect(reranker, version) as client:
        yield client


def test_every_embedding_type_encodes_the_same_vectors(client: Any, embedder: RunningServer) -> None:
    reply = client.embed(texts=TEXTS, model="mini", input_type="search_document", embedding_types=TYPES)

    expected = embedder.embed(TEXTS)
    found = reply.embeddings
    assert is_close(found.float_, expected)
    assert is_close([np.frombuffer(b64decode(each), dtype="<f4") for each in found.base64], expected)
    assert np.abs(np.array(found.int8) - expected * 127).max() < 0.51
    assert np.abs(np.array(found.uint8) - (expected + 1) * 127.5).max() < 0.51
    signs = np.unpackbits(np.array(found.ubinary, dtype=np.uint8), axis=1)
    assert (signs == (expected >= 0))[np.abs(expected) > 1e-5].all()
    assert (np.array(found.binary) == np.array(found.ubinary) - 128).all()


def test_the_reply_reports_billed_tokens(client: Any, embedder: RunningServer, version: str) -> None:
    reply = client.embed(texts=TEXTS, model="mini", input_type="search_document", embedding_types=["float"])

    assert reply.texts == TEXTS and reply.id
    assert reply.meta.api_version.version == version
    assert reply.meta.billed_units.input_tokens == embedder.num_tokens(TEXTS)


@pytest.mark.parametrize(("input_type", "prompt"), [("search_query", "query"), ("search_document", "document")])
def test_the_input_type_chooses_the_models_prompt(
    guarded: RunningServer, version: str, input_type: Any, prompt: str
) -> None:
    with connect(guarded, version, KEY) as client:
        reply = client.embed(texts=TEXTS, model="tiny", input_type=input_type, embedding_types=["float"])

    expected = guarded.embed(TEXTS, prompt=PROMPTS[prompt])
    assert is_close(reply.embeddings.float_, expected)
    assert not is_close(expected, guarded.embed(TEXTS))


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


def test_version_2_has_sizes_and_texts_in_parts(embedder: RunningServer) -> None:
    parts: Any = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
    with connect(embedder, "2") as client:
        reply = client.embed(
            inputs=parts, model="mini", input_type="search_document", output_dimension=64, embedding_types=["float"]
        )

    cut = embedder.embed(TEXTS)[:, :64]
    assert is_close(reply.embeddings.float_, cut / np.linalg.norm(cut, axis=1, keepdims=True))


def test_long_texts_are_cut_at_the_end_unless_asked_otherwise(client: Any, embedder: RunningServer) -> None:
    long = "first " + "deep water " * 300 + "last"
    wanted = {"model": "mini", "input_type": "search_document", "embedding_types": ["float"]}

    cut = client.embed(texts=[long], **wanted)
    start = client.embed(texts=[long], truncate="START", **wanted)

    ids = embedder.ids(long)
    ends = [[*ids[:255], ids[-1]], ids[-256:]]
    expected = embedder.embed([{"prompt_token_ids": each} for each in ends])
    assert is_close(cut.embeddings.float_, expected[:1])
    assert is_close(start.embeddings.float_, expected[1:])
    assert cut.meta.warnings and cut.meta.billed_units.input_tokens == 256
    with pytest.raises(cohere.BadRequestError):
        client.embed(texts=[long], truncate="NONE", **wanted)


def test_reranking_puts_the_highest_score_first(ranking: Any, reranker: RunningServer, version: str) -> None:
    reply = ranking.rerank(model="pairs", query=QUERY, documents=DOCUMENTS)

    scores = reranker.score(QUERY, DOCUMENTS)
    assert [each.index for each in reply.results] == sorted(range(4), key=lambda place: -scores[place])
    assert is_close([each.relevance_score for each in reply.results], sorted(scores, reverse=True))
    assert len(set(np.round(scores, 4))) == 4
    assert reply.meta.api_version.version == version and reply.meta.billed_units.search_units == 1


def test_reranking_returns_as_many_as_wanted(ranking: Any, reranker: RunningServer) -> None:
    reply = ranking.rerank(model="pairs", query=QUERY, documents=DOCUMENTS, top_n=2)

    scores = reranker.score(QUERY, DOCUMENTS)
    assert [each.index for each in reply.results] == sorted(range(4), key=lambda place: -scores[place])[:2]


def test_version_1_returns_documents_as_they_were_sent(reranker: RunningServer) -> None:
    documents = [{"text": text, "title": f"number {place}"} for place, text in enumerate(DOCUMENTS)]
    with connect(reranker, "1") as client:
        texts = client.rerank(model="pairs", query=QUERY, documents=DOCUMENTS, return_documents=True)
        objects = client.rerank(model="pairs", query=QUERY, documents=documents, return_documents=True)
        bare = client.rerank(model="pairs", query=QUERY, documents=DOCUMENTS, return_documents=False)

    scores = sorted(reranker.score(QUERY, DOCUMENTS), reverse=True)
    for reply in (texts, objects, bare):
        assert is_close([each.relevance_score for each in reply.results], scores)
    assert [each.document.text for each in texts.results] == [DOCUMENTS[each.index] for each in texts.results]
    for each in objects.results:
        assert each.document.dict() == documents[each.index] | {"multi_modal": None}
    assert all(each.document is None for each in bare.results)


def test_version_1_ranks_by_the_fields_it_names(reranker: RunningServer) -> None:
    documents = [{"title": text, "body": "the same", "number": str(place)} for place, text in enumerate(DOCUMENTS)]
    with connect(reranker, "1") as client:
        one = client.rerank(model="pairs", query=QUERY, documents=documents, rank_fields=["title"])
        two = client.rerank(model="pairs", query=QUERY, documents=documents, rank_fields=["title", "body"])

    assert is_close(
        [each.relevance_score for each in one.results], sorted(reranker.score(QUERY, DOCUMENTS), reverse=True)
    )
    lines = [f"title: {text}\nbody: the same" for text in DOCUMENTS]
    assert is_close([each.relevance_score for each in two.results], sorted(reranker.score(QUERY, lines), reverse=True))


def test_version_2_reads_so_many_tokens_of_a_document(reranker: RunningServer) -> None:
    with connect(reranker, "2") as client:
        reply = client.rerank(model="pairs", query=QUERY, documents=DOCUMENTS, max_tokens_per_doc=3)

    starts = [" ".join(text.split()[:3]) for text in DOCUMENTS]  # one token for each of these words
    assert is_close(
        [each.relevance_score for each in reply.results], sorted(reranker.score(QUERY, starts), reverse=True)
    )


def test_version_2_cuts_documents_that_no_model_reads_in_full(reranker: RunningServer) -> None:
    documents = ["the old city " * 500, "a bird"]
    with connect(reranker, "2") as client:
        reply = client.rerank(model="pairs", query=QUERY, documents=documents, max_tokens_per_doc=4096)

    assert sorted(each.index for each in reply.results) == [0, 1]
    assert reply.meta.warnings and not any("traceback" in each for each in reply.meta.warnings)


def test_a_real_cross_encoder_answers_the_example_of_the_guide(judge: RunningServer, version: str) -> None:
    question = "What is the capital of France?"
    documents = ["Reranking is fun!", "The capital of France is Paris", "vLLM is an open-source framework"]
    with connect(judge, version) as client:
        reply = client.rerank(model=judge.model, query=question, documents=documents)

    assert reply.results[0].index == 1
    scores = judge.score(question, documents)
    assert is_close([each.relevance_score for each in reply.results], sorted(scores, reverse=True))


def test_errors_come_as_the_clients_own(guarded: RunningServer, version: str) -> None:
    with connect(guarded, version, KEY) as client, pytest.raises(cohere.NotFoundError) as unknown:
        client.embed(texts=["a"], model="embed-v4.0", input_type="search_query", embedding_types=["float"])
    with connect(guarded, version, "wrong") as client, pytest.raises(cohere.UnauthorizedError):
        client.rerank(model="tiny", query="a", documents=["b"])
    with connect(guarded, version, KEY) as client, pytest.raises(cohere.BadRequestError, match="input_type"):
        client.embed(texts=["a"], model="tiny", input_type="rhyme", embedding_types=["float"])

    assert "The model `embed-v4.0` does not exist." in str(unknown.value.body)


def test_concurrent_async_calls_get_their_own_results(reranker: RunningServer) -> None:
    async def ask() -> list[Any]:
        async with cohere.AsyncClientV2(base_url=reranker.url, api_key="sk-fake-key") as client:
            questions = (client.rerank(model="pairs", query=each, documents=DOCUMENTS) for each in DOCUMENTS)
            return list(await asyncio.gather(*questions))

    for query, reply in zip(DOCUMENTS, asyncio.run(ask()), strict=True):
        scores = reranker.score(query, DOCUMENTS)
        assert is_close([each.relevance_score for each in reply.results], sorted(scores, reverse=True))


def embed_multimodal(server: RunningServer, text: str, *images: Any) -> Any:
    prompt = {"prompt": f"<|im_start|>user\n{text}<|im_end|>\n", "multi_modal_data": {"image": list(images)}}
    return server.embed(prompt, tokenization_kwargs={"add_special_tokens": False})


def test_images_are_embedded(seer: RunningServer, version: str) -> None:
    with connect(seer, version) as client:
        reply = client.embed(
            images=[data_uri(CAT)], model="seer", input_type="image", embedding_types=["float", "ubinary"]
        )
        with pytest.raises(cohere.BadRequestError) as refused:
            client.embed(images=["data:image/png;base64,"], model="seer", input_type="image", embedding_types=["float"])

    assert is_close(reply.embeddings.float_, embed_multimodal(seer, IMAGE, CAT))
    assert reply.meta.billed_units.images == 1 and reply.meta.billed_units.image_tokens > 1
    assert refused.value.body["message"].startswith("images[0]: ")


def test_texts_and_images_are_embedded_together(seer: RunningServer) -> None:
    parts = [text_part("the cat"), image_part(CAT), image_part(DOG)]
    with connect(seer, "2") as client:
        reply = client.embed(
            inputs=[{"content": parts}], model="seer", input_type="search_document", embedding_types=["float"]
        )

    assert is_close(reply.embeddings.float_, embed_multimodal(seer, f"the cat{IMAGE}{IMAGE}", CAT, DOG))
