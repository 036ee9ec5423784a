"""cohere: versions 1 and 2."""

from __future__ import annotations

from typing import Any

import cohere
from checks import (
    ALL,
    CLASSIFIER,
    DOCUMENTS,
    KEY,
    LONG_TEXT,
    MODEL,
    QUERY,
    RERANKER,
    TEXTS,
    check,
    classify,
    decode_floats,
    embed,
    embed_as,
    equal,
    post,
    rank,
    run_checks,
    same,
)

TYPES = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
v1 = cohere.Client(base_url=ALL, api_key=KEY)
v2 = cohere.ClientV2(base_url=ALL, api_key=KEY)


def compare_types(embeddings: Any) -> None:
    same(embeddings.float_, embed())
    same([decode_floats(text) for text in embeddings.base64], embed())
    for dtype in ("int8", "uint8", "binary", "ubinary"):
        equal(getattr(embeddings, dtype), embed_as(dtype))


def read_ranking(reply: Any) -> list[tuple[int, float]]:
    return [(result.index, result.relevance_score) for result in reply.results]


@check("cohere ClientV2: embed in six types, inputs, output_dimension", "cohere")
def embed_v2() -> None:
    options: Any = {"model": MODEL, "input_type": "search_document"}
    compare_types(v2.embed(texts=TEXTS, embedding_types=TYPES, **options).embeddings)
    inputs: Any = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
    same(v2.embed(inputs=inputs, embedding_types=["float"], **options).embeddings.float_, embed())
    reply = v2.embed(texts=TEXTS, embedding_types=["float"], output_dimension=64, **options)
    same(reply.embeddings.float_, embed(dimensions=64))


@check("cohere ClientV2: rerank", "cohere")
def rerank_v2() -> None:
    reply = v2.rerank(model=RERANKER, query=QUERY, documents=[*DOCUMENTS, LONG_TEXT], top_n=4)
    same(read_ranking(reply), rank([*DOCUMENTS, LONG_TEXT], truncate_prompt_tokens=-1)[:4])


@check("cohere AsyncClientV2: embed, rerank", "cohere")
async def asynchronous() -> None:
    async with cohere.AsyncClientV2(base_url=ALL, api_key=KEY) as client:
        reply = await client.embed(texts=TEXTS, model=MODEL, input_type="search_document", embedding_types=["float"])
        same(reply.embeddings.float_, embed())
        same(read_ranking(await client.rerank(model=RERANKER, query=QUERY, documents=DOCUMENTS)), rank())


@check("cohere Client (v1): embed, more than 96 texts", "cohere")
def embed_v1() -> None:
    reply = v1.embed(texts=TEXTS, model=MODEL, input_type="search_document", embedding_types=TYPES)
    compare_types(reply.embeddings)
    texts = [f"cave number {number}" for number in range(200)]
    same(v1.embed(texts=texts, model=MODEL, input_type="clustering").embeddings, embed(texts))


@check("cohere Client (v1): rerank of strings, objects, rank_fields, long documents", "cohere")
def rerank_v1() -> None:
    documents = [*DOCUMENTS, LONG_TEXT]
    expected = rank(documents, truncate_prompt_tokens=-1)
    same(read_ranking(v1.rerank(model=RERANKER, query=QUERY, documents=documents)), expected)
    objects: Any = [{"title": "a", "text": text} for text in DOCUMENTS]
    same(read_ranking(v1.rerank(model=RERANKER, query=QUERY, documents=objects, rank_fields=["text"])), rank())


@check("cohere Client (v1): tokenize, detokenize, classify, models", "cohere")
def other_v1() -> None:
    ids = post(ALL, "/tokenize", {"model": MODEL, "prompt": TEXTS[0], "add_special_tokens": False})["tokens"]
    equal(v1.tokenize(text=TEXTS[0], model=MODEL, offline=False).tokens, ids)
    equal(v1.detokenize(tokens=ids, model=MODEL, offline=False).text, TEXTS[0])
    classes: Any = v1.classify(model=CLASSIFIER, inputs=TEXTS).classifications
    expected = classify()
    same([item.confidence for item in classes], [max(row.values()) for row in expected])
    equal([item.prediction for item in classes], [max(row, key=lambda name: row[name]) for row in expected])
    v1.models.list()


if __name__ == "__main__":
    run_checks()
