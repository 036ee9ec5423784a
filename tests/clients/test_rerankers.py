"""rerankers: its providers, each with the URL of this server."""

from __future__ import annotations

from typing import Any

import pytest
from rerankers import Document
from rerankers.models.api_rankers import APIRanker

from tests.clients.conftest import DOCUMENTS, QUERY, RunningServer, is_close

PATHS = {
    "cohere": "/v1/rerank",
    "jina": "/v1/rerank",
    "voyage": "/v1/rerank",
    "mixedbread.ai": "/v1/reranking",
    "text-embeddings-inference": "/rerank",
}


def connect(server: RunningServer, provider: str) -> Any:
    return APIRanker("pairs", "fake-key", provider, verbose=0, url=server.url + PATHS[provider])


@pytest.mark.parametrize("provider", PATHS)
def test_documents_are_reranked(reranker: RunningServer, provider: str) -> None:
    results = connect(reranker, provider).rank(query=QUERY, docs=DOCUMENTS).results

    scores = reranker.score(QUERY, DOCUMENTS)
    order = sorted(range(4), key=lambda index: -scores[index])
    assert [result.doc_id for result in results] == order
    assert is_close([result.score for result in results], [scores[index] for index in order])


@pytest.mark.parametrize("provider", PATHS)
def test_one_document_is_scored(reranker: RunningServer, provider: str) -> None:
    score = connect(reranker, provider).score(QUERY, Document(text=DOCUMENTS[1]))

    assert is_close(score, reranker.score(QUERY, DOCUMENTS[1:2])[0])
