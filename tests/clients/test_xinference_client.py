"""xinference-client: models by name, embeddings and reranking."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from xinference_client import RESTfulClient

from tests.clients.conftest import DOCUMENTS, KEY, QUERY, TEXTS, RunningServer, is_close


def connect(server: RunningServer, key: str | None = None) -> Any:
    return closing(RESTfulClient(server.url, api_key=key))


def test_texts_are_embedded(embedder: RunningServer) -> None:
    with connect(embedder) as client, closing(client.get_model("mini")) as model:
        reply = model.create_embedding(TEXTS)

    assert is_close([item["embedding"] for item in reply["data"]], embedder.embed(TEXTS))
    assert reply["usage"]["prompt_tokens"] == embedder.num_tokens(TEXTS)


def test_documents_are_reranked(reranker: RunningServer) -> None:
    with connect(reranker) as client, closing(client.get_model("pairs")) as model:
        reply = model.rerank(DOCUMENTS, QUERY, top_n=3, return_documents=True)

    scores = reranker.score(QUERY, DOCUMENTS)
    order = sorted(range(4), key=lambda index: -scores[index])[:3]
    assert [item["index"] for item in reply["results"]] == order
    assert is_close([item["relevance_score"] for item in reply["results"]], [scores[index] for index in order])
    assert [item["document"]["text"] for item in reply["results"]] == [DOCUMENTS[index] for index in order]


def test_the_api_key_is_sent_and_models_are_listed(protected_server: RunningServer) -> None:
    with connect(protected_server, KEY) as client, closing(client.get_model("tiny")) as model:
        names = list(client.list_models())
        reply = model.create_embedding(TEXTS)

    assert names == ["tiny"]
    assert is_close([item["embedding"] for item in reply["data"]], protected_server.embed(TEXTS))


def test_an_unknown_model_is_an_error(embedder: RunningServer) -> None:
    with connect(embedder) as client, pytest.raises(RuntimeError, match="another"):
        client.get_model("another")
