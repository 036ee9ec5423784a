"""llama-index: embeddings of anything like OpenAI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, cast

import httpx
import pytest
from llama_index.core.schema import TextNode
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

from tests.clients.conftest import KEY, RunningServer, is_close

TEXTS = [f"cave number {number} is deep" for number in range(25)]  # it sends 10 at a time


@pytest.fixture
def embedding() -> Iterator[Callable[..., OpenAILikeEmbedding]]:
    with httpx.Client() as client:  # one that is closed: its own stays open until the end of the process

        def embed_with(server: RunningServer, **options: Any) -> OpenAILikeEmbedding:
            place: Any = {"model_name": server.model, "api_base": f"{server.url}/v1", "api_key": KEY}
            return OpenAILikeEmbedding(**place, http_client=client, **options)

        yield embed_with


@pytest.mark.parametrize("server", ["embedder", "guarded"])
def test_texts_and_queries_are_embedded(request: pytest.FixtureRequest, embedding: Any, server: str) -> None:
    serving: RunningServer = request.getfixturevalue(server)
    client = embedding(serving)

    expected = serving.embed(TEXTS)
    assert is_close(client.get_text_embedding_batch(TEXTS), expected)
    assert is_close(client.get_text_embedding(TEXTS[3]), expected[3])
    assert is_close(client.get_query_embedding(TEXTS[4]), expected[4])


def test_texts_are_embedded_asynchronously(embedder: RunningServer, embedding: Any) -> None:
    async def ask() -> list[list[float]]:
        async with httpx.AsyncClient() as client:
            found = await embedding(embedder, async_http_client=client).aget_text_embedding_batch(TEXTS)
            return cast(list[list[float]], found)

    assert is_close(asyncio.run(ask()), embedder.embed(TEXTS))


def test_nodes_get_vectors_of_a_chosen_size(embedder: RunningServer, embedding: Any) -> None:
    nodes = embedding(embedder, dimensions=16)([TextNode(text=text) for text in TEXTS[:3]])

    assert [len(node.embedding or []) for node in nodes] == [16, 16, 16]


def test_the_nearest_text_is_the_related_one(embedder: RunningServer, embedding: Any) -> None:
    client = embedding(embedder)
    query = client.get_query_embedding("how do I bake bread?")

    far, near = (
        client.similarity(query, each) for each in client.get_text_embedding_batch(["the deep sea", "flour and yeast"])
    )

    assert near > far + 0.1
