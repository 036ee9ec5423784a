"""llama-index: OpenAILikeEmbedding."""

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
def make_client() -> Iterator[Callable[..., OpenAILikeEmbedding]]:
    with httpx.Client() as client:  # closed here: the default client stays open until the process exits

        def make_embedding(server: RunningServer, **options: Any) -> OpenAILikeEmbedding:
            settings: Any = {"model_name": server.model, "api_base": f"{server.url}/v1", "api_key": KEY}
            return OpenAILikeEmbedding(**settings, http_client=client, **options)

        yield make_embedding


@pytest.mark.parametrize("server", ["embedder", "protected_server"])
def test_texts_and_queries_are_embedded(request: pytest.FixtureRequest, make_client: Any, server: str) -> None:
    running: RunningServer = request.getfixturevalue(server)
    client = make_client(running)

    expected = running.embed(TEXTS)
    assert is_close(client.get_text_embedding_batch(TEXTS), expected)
    assert is_close(client.get_text_embedding(TEXTS[3]), expected[3])
    assert is_close(client.get_query_embedding(TEXTS[4]), expected[4])


def test_texts_are_embedded_asynchronously(embedder: RunningServer, make_client: Any) -> None:
    async def embed() -> list[list[float]]:
        async with httpx.AsyncClient() as client:
            embeddings = await make_client(embedder, async_http_client=client).aget_text_embedding_batch(TEXTS)
            return cast(list[list[float]], embeddings)

    assert is_close(asyncio.run(embed()), embedder.embed(TEXTS))


def test_nodes_get_embeddings_with_the_requested_dimensions(embedder: RunningServer, make_client: Any) -> None:
    nodes = make_client(embedder, dimensions=16)([TextNode(text=text) for text in TEXTS[:3]])

    assert [len(node.embedding or []) for node in nodes] == [16, 16, 16]


def test_the_nearest_text_is_the_related_one(embedder: RunningServer, make_client: Any) -> None:
    client = make_client(embedder)
    query = client.get_query_embedding("how do I bake bread?")

    unrelated, related = (
        client.similarity(query, vector)
        for vector in client.get_text_embedding_batch(["the deep sea", "flour and yeast"])
    )

    assert related > unrelated + 0.1
