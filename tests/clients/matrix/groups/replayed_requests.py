"""Requests of programs in Go and Java, replayed: the services of Elasticsearch, OpenSearch and Weaviate."""

from __future__ import annotations

import json
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

from checks import (
    ALL,
    DOCUMENTS,
    EMBED,
    MODEL,
    QUERY,
    RERANK,
    RERANKER,
    TEXTS,
    check,
    embed,
    embed_as,
    equal,
    post,
    rank,
    run_checks,
    same,
)


def post_without_type(server: str, path: str, body: Any) -> Any:
    """Post JSON without a content type, as some programs in Go do; urllib would set that of a form."""
    connection = HTTPConnection(server.removeprefix("http://"), timeout=60)
    with closing(connection):
        connection.request("POST", path, json.dumps(body))
        reply = connection.getresponse()
        if reply.status != 200:
            raise AssertionError(f"{path}: status {reply.status}, {reply.read()!r}")
        return json.load(reply)


def read_vectors(reply: Any) -> list[Any]:
    return [item["embedding"] for item in reply["data"]]


@check("Elasticsearch openai, OpenSearch openai connector", "")
def search_openai() -> None:
    same(read_vectors(post(ALL, "/v1/embeddings", {"input": TEXTS, "model": MODEL, "user": "es"})), embed())


@check("Elasticsearch cohere: embeddings, rerank", "")
def elastic_cohere() -> None:
    body = {"texts": TEXTS, "model": MODEL, "input_type": "search_document", "embedding_types": ["int8"]}
    for path in ("/v1/embed", "/v2/embed"):
        equal(post(ALL, path, body)["embeddings"]["int8"], embed_as("int8"))
    body = {"model": RERANKER, "query": QUERY, "documents": DOCUMENTS, "return_documents": False, "top_n": 4}
    results = post(ALL, "/v2/rerank", body)["results"]
    same([(item["index"], item["relevance_score"]) for item in results], rank())


@check("Elasticsearch jinaai: objects with text, bits", "")
def elastic_jina() -> None:
    objects = [{"text": text} for text in TEXTS]
    same(read_vectors(post(ALL, "/v1/embeddings", {"input": objects, "model": MODEL})), embed())
    body = {"input": TEXTS, "model": MODEL, "embedding_type": "binary"}
    equal(read_vectors(post(ALL, "/v1/embeddings", body)), embed_as("binary"))


@check("Elasticsearch hugging_face: embeddings, rerank", "")
def elastic_hugging_face() -> None:
    same(post(EMBED, "/", {"inputs": TEXTS}), embed())
    results = post(RERANK, "/rerank", {"query": QUERY, "texts": DOCUMENTS, "return_text": True})
    same([(item["index"], item["score"]) for item in results], rank())


@check("Weaviate text2vec-openai, -cohere, -jinaai, -voyageai", "")
def weaviate_vendors() -> None:
    same(read_vectors(post(ALL, "/v1/embeddings", {"input": TEXTS, "model": MODEL, "dimensions": 384})), embed())
    body = {"texts": TEXTS, "model": MODEL, "input_type": "search_document", "truncate": "END"}
    same(post(ALL, "/v2/embed", body | {"embedding_types": ["float"]})["embeddings"]["float"], embed())
    same(
        read_vectors(post(ALL, "/v1/embeddings", {"input": TEXTS, "model": MODEL, "normalized": False})),
        embed(normalize=False),
    )
    body = {"input": TEXTS, "model": MODEL, "truncation": True, "input_type": "document"}
    same(read_vectors(post(ALL, "/v1/embeddings", body)), embed())


@check("Weaviate text2vec-huggingface", "")
def weaviate_hugging_face() -> None:
    body = {"inputs": TEXTS, "options": {"wait_for_model": True, "use_gpu": False, "use_cache": True}}
    same(post(ALL, f"/pipeline/feature-extraction/{MODEL}", body), embed())


@check("Weaviate text2vec-transformers", "")
def weaviate_transformers() -> None:
    config = {"pooling_strategy": "masked_mean", "task_type": "passage"}
    for text, vector in zip(TEXTS, embed(), strict=True):
        body = {"text": text, "dims": 0, "vector": None, "error": "", "config": config}
        same(post_without_type(EMBED, "/vectors", body)["vector"], vector)
    same(post_without_type(EMBED, "/vectors", {"texts": TEXTS, "config": config})["vectors"], embed())


@check("Weaviate reranker-transformers", "")
def weaviate_reranker() -> None:
    body = {"query": QUERY, "documents": DOCUMENTS, "property": ""}
    scores = post_without_type(RERANK, "/rerank", body)["scores"]
    equal([item["document"] for item in scores], DOCUMENTS)
    same([item["score"] for item in scores], [score for _, score in sorted(rank())])


if __name__ == "__main__":
    run_checks()
