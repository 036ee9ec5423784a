"""ollama: embed, the older embeddings, and the routes that describe models."""

from __future__ import annotations

import asyncio

import ollama
import pytest

from cenote import PoolingParams
from tests.clients.conftest import KEY, TEXTS, RunningServer, is_close

RAW = PoolingParams(normalize=False)
HEADERS = {"Authorization": f"Bearer {KEY}"}


def test_texts_are_embedded_and_counted(embedder: RunningServer) -> None:
    client = ollama.Client(host=embedder.url)
    with client._client:
        reply = client.embed(model="mini", input=TEXTS)
        small = client.embed(model="mini:latest", input=TEXTS[0], dimensions=32)

    assert is_close(reply.embeddings, embedder.embed(TEXTS))
    assert reply.prompt_eval_count == embedder.num_tokens(TEXTS)
    assert [len(vector) for vector in small.embeddings] == [32]


def test_the_older_route_returns_one_vector_that_is_not_normalised(embedder: RunningServer) -> None:
    client = ollama.Client(host=embedder.url)
    with client._client:
        reply = client.embeddings(model="mini", prompt=TEXTS[0])

    assert is_close(reply.embedding, embedder.embed(TEXTS[:1], pooling_params=RAW)[0])


def test_long_texts_are_truncated_unless_the_client_refuses(embedder: RunningServer) -> None:
    long = "deep water " * 300
    client = ollama.Client(host=embedder.url)
    with client._client:
        assert client.embed(model="mini", input=long).prompt_eval_count == 256
        with pytest.raises(ollama.ResponseError, match="256") as refused:
            client.embed(model="mini", input=long, truncate=False)

    assert refused.value.status_code == 400


def test_models_are_listed_described_and_pulled(embedder: RunningServer) -> None:
    client = ollama.Client(host=embedder.url)
    with client._client:
        assert [model.model for model in client.list().models] == ["mini"]
        assert [model.model for model in client.ps().models] == ["mini"]
        assert client.pull("mini").status == "success"
        assert client.show("mini").modelinfo
        with pytest.raises(ollama.ResponseError, match="another") as unknown:
            client.show("another")

    assert unknown.value.status_code == 404


def test_texts_are_embedded_asynchronously_with_a_key(protected_server: RunningServer) -> None:
    async def embed() -> ollama.EmbedResponse:
        client = ollama.AsyncClient(host=protected_server.url, headers=HEADERS)
        async with client._client:
            return await client.embed(model="tiny", input=TEXTS)

    assert is_close(asyncio.run(embed()).embeddings, protected_server.embed(TEXTS))
