"""litellm: embeddings and reranking through its provider hosted_vllm."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import litellm
import pytest

from tests.clients.conftest import DOCUMENTS, KEY, QUERY, TEXTS, RunningServer, is_close

# about its types, when it first makes use of them
pytestmark = pytest.mark.filterwarnings("ignore:Item '.*' on TypedDict class '.*' is using the `ReadOnly` qualifier")


def embed(server: RunningServer, **options: Any) -> Any:
    return litellm.embedding(f"hosted_vllm/{server.model}", api_base=f"{server.url}/v1", **options)


def rerank(server: RunningServer, **options: Any) -> Any:
    options = {"api_base": server.url, "query": QUERY, "documents": DOCUMENTS} | options
    return litellm.rerank(f"hosted_vllm/{server.model}", **options)


def run_async(awaitable: Awaitable[Any]) -> Any:
    async def ask() -> Any:
        try:
            return await awaitable
        finally:
            await litellm.close_litellm_async_clients()

    return asyncio.run(ask())


def test_texts_are_embedded_and_counted(embedder: RunningServer) -> None:
    reply = embed(embedder, input=TEXTS)

    assert is_close([each["embedding"] for each in reply.data], embedder.embed(TEXTS))
    assert reply.usage.prompt_tokens == embedder.num_tokens(TEXTS)


def test_sizes_and_further_fields_pass_through(embedder: RunningServer) -> None:
    reply = embed(embedder, input=["deep water " * 300], dimensions=32, truncate_prompt_tokens=5)

    assert len(reply.data[0]["embedding"]) == 32
    assert reply.usage.prompt_tokens == 5


def test_texts_are_embedded_asynchronously(guarded: RunningServer) -> None:
    reply = run_async(litellm.aembedding("hosted_vllm/tiny", input=TEXTS, api_base=f"{guarded.url}/v1", api_key=KEY))

    assert is_close([each["embedding"] for each in reply.data], guarded.embed(TEXTS))


@pytest.mark.parametrize("path", ["", "/", "/v1", "/rerank", "/v1/rerank"])
def test_documents_are_reranked_under_every_address_it_takes(reranker: RunningServer, path: str) -> None:
    reply = rerank(reranker, api_base=reranker.url + path)

    scores = reranker.score(QUERY, DOCUMENTS)
    assert [each["index"] for each in reply.results] == sorted(range(4), key=lambda place: -scores[place])
    assert is_close([each["relevance_score"] for each in reply.results], sorted(scores, reverse=True))
    assert [each["document"]["text"] for each in reply.results] == [DOCUMENTS[each["index"]] for each in reply.results]
    used = reranker.llm.score(QUERY, DOCUMENTS, use_tqdm=False)
    assert reply.meta["tokens"]["input_tokens"] == sum(len(each.prompt_token_ids) for each in used)


def test_documents_that_are_objects_are_reranked(reranker: RunningServer) -> None:
    reply = rerank(reranker, documents=[{"text": text, "id": place} for place, text in enumerate(DOCUMENTS)], top_n=2)

    scores = reranker.score(QUERY, DOCUMENTS)
    assert [each["index"] for each in reply.results] == sorted(range(4), key=lambda place: -scores[place])[:2]
    assert reply.results[0]["document"]["text"] == DOCUMENTS[reply.results[0]["index"]]


def test_documents_are_left_out_where_they_are_not_wanted(reranker: RunningServer) -> None:
    reply = rerank(reranker, return_documents=False)

    assert len(reply.results) == 4 and not any("document" in each for each in reply.results)


def test_limits_pass_through(reranker: RunningServer) -> None:
    reply = rerank(reranker, max_tokens_per_doc=3)

    starts = [" ".join(text.split()[:3]) for text in DOCUMENTS]  # one token for each of these words
    assert is_close(
        [each["relevance_score"] for each in reply.results], sorted(reranker.score(QUERY, starts), reverse=True)
    )


def test_documents_are_reranked_asynchronously(reranker: RunningServer) -> None:
    reply = run_async(litellm.arerank("hosted_vllm/pairs", query=QUERY, documents=DOCUMENTS, api_base=reranker.url))

    expected = sorted(reranker.score(QUERY, DOCUMENTS), reverse=True)
    assert is_close([each["relevance_score"] for each in reply.results], expected)


def test_errors_come_as_the_clients_own(guarded: RunningServer, embedder: RunningServer) -> None:
    with pytest.raises(litellm.NotFoundError, match="does not exist"):
        litellm.embedding("hosted_vllm/another", input=TEXTS, api_base=f"{embedder.url}/v1")
    with pytest.raises(litellm.AuthenticationError):
        embed(guarded, input=TEXTS, api_key="wrong")
    with pytest.raises(litellm.BadRequestError, match="602"):
        embed(embedder, input=["deep water " * 300])
