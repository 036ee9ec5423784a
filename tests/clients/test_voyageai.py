"""voyageai: dtypes, sizes and truncation of embeddings, reranking, multimodal inputs."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import voyageai

from tests.clients.conftest import DOCUMENTS, KEY, PROMPTS, QUERY, TEXTS, RunningServer, is_close


def connect(server: RunningServer, key: str = "sk-fake-key") -> Any:
    return voyageai.Client(api_key=key, base_url=f"{server.url}/v1", max_retries=0)


def test_texts_are_embedded_and_counted(embedder: RunningServer) -> None:
    reply = connect(embedder).embed(TEXTS, model="mini")

    assert is_close(reply.embeddings, embedder.embed(TEXTS))
    assert reply.total_tokens == embedder.num_tokens(TEXTS)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "binary", "ubinary"])
def test_integers_are_read_in_their_own_width(embedder: RunningServer, dtype: str) -> None:
    rows = np.array(connect(embedder).embed(TEXTS, model="mini", output_dtype=dtype).embeddings)

    expected = embedder.embed(TEXTS)
    if dtype in ("int8", "uint8"):
        scaled = expected * 127 if dtype == "int8" else (expected + 1) * 127.5
        assert np.abs(rows - scaled).max() < 0.51
    else:
        signs = np.unpackbits((rows + 128 * (dtype == "binary")).astype(np.uint8), axis=1)
        assert (signs == (expected >= 0))[np.abs(expected) > 1e-5].all()


def test_the_output_dimension_is_honoured(embedder: RunningServer) -> None:
    reply = connect(embedder).embed(TEXTS, model="mini", output_dimension=64)

    truncated = embedder.embed(TEXTS)[:, :64]
    assert is_close(reply.embeddings, truncated / np.linalg.norm(truncated, axis=1, keepdims=True))


def test_the_input_type_selects_the_prompt_and_texts_are_embedded_asynchronously(
    protected_server: RunningServer,
) -> None:
    async def embed() -> Any:
        client = voyageai.AsyncClient(api_key=KEY, base_url=f"{protected_server.url}/v1")
        return await client.embed(TEXTS, model="tiny", input_type="query")

    expected = protected_server.embed(TEXTS, prompt=PROMPTS["query"])
    assert is_close(asyncio.run(embed()).embeddings, expected)
    with pytest.raises(voyageai.error.AuthenticationError):
        connect(protected_server, "wrong").embed(TEXTS, model="tiny")


def test_documents_are_reranked(reranker: RunningServer) -> None:
    reply = connect(reranker).rerank(QUERY, DOCUMENTS, model="pairs", top_k=2)

    scores = reranker.score(QUERY, DOCUMENTS)
    order = sorted(range(4), key=lambda index: -scores[index])[:2]
    assert [result.index for result in reply.results] == order
    assert is_close([result.relevance_score for result in reply.results], [scores[index] for index in order])
    assert [result.document for result in reply.results] == [DOCUMENTS[index] for index in order]


def test_long_texts_are_truncated_unless_the_client_refuses(embedder: RunningServer) -> None:
    long = ["deep water " * 300]
    client = connect(embedder)

    assert client.embed(long, model="mini").total_tokens == 256
    with pytest.raises(voyageai.error.InvalidRequestError, match="256"):
        client.embed(long, model="mini", truncation=False)


def test_multimodal_inputs_of_text_are_embedded(embedder: RunningServer) -> None:
    inputs: Any = [[text] for text in TEXTS]

    assert is_close(connect(embedder).multimodal_embed(inputs, model="mini").embeddings, embedder.embed(TEXTS))
