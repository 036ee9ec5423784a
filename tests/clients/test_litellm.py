"""litellm: embeddings and reranking through its provider hosted_vllm."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import litellm
import pytest

from tests.clients.conftest import DOCUMENTS, KEY, QUERY, TEXTS, RunningServer, is_close

# a warning of pydantic about litellm's types
pytestmark = pytest.mark.filterwarnings("ignore:Item '.*' on TypedDict class '.*' is using the `ReadOnly` qualifier")


def embed(server: RunningServer, **options: Any) -> Any:
    return litellm.embedding(f"hosted_vllm/{server.model}", api_base=f"{server.url}/v1", **options)


def rerank(server: RunningServer, **options: Any) -> Any:
    options = {"api_base": server.url, "query": QUERY, "documents": DOCUMENTS} | options
    return litellm.rerank(f"hosted_vllm/{server.model}", **options)


def run_async(awaitable: Awaitable[Any]) -> Any:
    async def run() -> Any:
        try:
            return await awaitable
        finally:
            await litellm.close_litellm_async_clients()

    return asyncio.run(run())


def test_texts_are_embedded_and_counted(embedder: RunningServer) -> None:
    reply = embed(embedder, input=TEXTS)

    assert is_close([result["embedding"] for result in reply.data], embedder.embed(TEXTS))
    assert reply.usage.prompt_tokens == embedder.num_tokens(TEXTS)


def test_dimensions_and_extra_fields_are_passed_through(embedder: RunningServer) -> None:
    reply = embed(embedder, input=["deep water " * 300], dimensions=32, truncate_prompt_tokens=5)

    assert len(reply.data[0]["embedding"]) == 32
    assert reply.usage.prompt_tokens == 5


def test_texts_are_embedded_asynchronously(protected_server: RunningServer) -> None:
    reply = run_async(
        litellm.aembedding("hosted_vllm/tiny", input=TEXTS, api_base=f"{protected_server.url}/v1", api_key=KEY)
    )

    assert is_close([result["embedding"] for result in reply.data], protected_server.embed(TEXTS))


@pytest.mark.parametrize("path", ["", "/", "/v1", "/rerank", "/v1/rerank"])
def test_documents_are_reranked_with_every_form_of_api_base(reranker: RunningServer, path: str) -> None:
    reply = rerank(reranker, api_base=reranker.url + path)

    scores = reranker.score(QUERY, DOCUMENTS)
    assert [result["index"] for result in reply.results] == sorted(range(4), key=lambda index: -scores[index])
    assert is_close([result["relevance_score"] for result in reply.results], sorted(scores, reverse=True))
    assert [result["document"]["text"] for result in reply.results] == [
        DOCUMENTS[result["index"]] for result in reply.results
    ]
    outputs = reranker.llm.score(QUERY, DOCUMENTS, use_tqdm=False)
    assert reply.meta["tokens"]["input_tokens"] == sum(len(output.prompt_token_ids) for output in outputs)


def test_documents_that_are_objects_are_reranked(reranker: RunningServer) -> None:
    reply = rerank(reranker, documents=[{"text": text, "id": index} for index, text in enumerate(DOCUMENTS)], top_n=2)

    scores = reranker.score(QUERY, DOCUMENTS)
    assert [result["index"] for result in reply.results] == sorted(range(4), key=lambda index: -scores[index])[:2]
    assert reply.results[0]["document"]["text"] == DOCUMENTS[reply.results[0]["index"]]


def test_documents_are_omitted_with_return_documents_false(reranker: RunningServer) -> None:
    reply = rerank(reranker, return_documents=False)

    assert len(reply.results) == 4 and not any("document" in result for result in reply.results)


def test_limits_are_passed_through(reranker: RunningServer) -> None:
    reply = rerank(reranker, max_tokens_per_doc=3)

    truncated = [" ".join(text.split()[:3]) for text in DOCUMENTS]  # one token for each of these words
    assert is_close(
        [result["relevance_score"] for result in reply.results], sorted(reranker.score(QUERY, truncated), reverse=True)
    )


def test_documents_are_reranked_asynchronously(reranker: RunningServer) -> None:
    reply = run_async(litellm.arerank("hosted_vllm/pairs", query=QUERY, documents=DOCUMENTS, api_base=reranker.url))

    expected = sorted(reranker.score(QUERY, DOCUMENTS), reverse=True)
    assert is_close([result["relevance_score"] for result in reply.results], expected)


def test_errors_are_raised_as_litellm_exceptions(protected_server: RunningServer, embedder: RunningServer) -> None:
    with pytest.raises(litellm.NotFoundError, match="does not exist"):
        litellm.embedding("hosted_vllm/another", input=TEXTS, api_base=f"{embedder.url}/v1")
    with pytest.raises(litellm.AuthenticationError):
        embed(protected_server, input=TEXTS, api_key="wrong")
    with pytest.raises(litellm.BadRequestError, match="602"):
        embed(embedder, input=["deep water " * 300])
