"""Embedding functions of vector databases: Chroma, Milvus, Qdrant."""

from __future__ import annotations

import os
from typing import Any

from checks import (
    ALL,
    DOCUMENTS,
    EMBED,
    KEY,
    MODEL,
    QUERY,
    RERANK,
    RERANKER,
    TEXTS,
    check,
    embed,
    embed_as,
    equal,
    rank,
    run_checks,
    same,
)

os.environ |= {"ANONYMIZED_TELEMETRY": "False", "CO_API_URL": ALL, "TEST_KEY": KEY}

import chromadb
import openai
from chromadb.utils import embedding_functions as chroma
from pymilvus import model as milvus
from qdrant_client import QdrantClient
from qdrant_client.models import Distance, PointStruct, VectorParams


@check("chromadb: OpenAIEmbeddingFunction, collection add and query", "chromadb")
def chroma_openai() -> None:
    function: Any = chroma.OpenAIEmbeddingFunction(api_key_env_var="TEST_KEY", api_base=f"{ALL}/v1", model_name=MODEL)
    same(function(TEXTS), embed())
    collection = chromadb.EphemeralClient().create_collection("texts", embedding_function=function)
    collection.add(ids=["0", "1", "2"], documents=TEXTS)
    equal(collection.query(query_texts=[TEXTS[1]], n_results=1)["ids"], [["1"]])


@check("chromadb: OpenAIEmbeddingFunction, api_type azure", "chromadb")
def chroma_azure() -> None:
    function: Any = chroma.OpenAIEmbeddingFunction(
        api_key_env_var="TEST_KEY",
        api_base=ALL,
        api_type="azure",
        api_version="2024-10-21",
        deployment_id=MODEL,
        model_name=MODEL,
    )
    same(function(TEXTS), embed())


@check("chromadb: CohereEmbeddingFunction", "chromadb", setting="environment: CO_API_URL")
def chroma_cohere() -> None:
    function: Any = chroma.CohereEmbeddingFunction(api_key_env_var="TEST_KEY", model_name=MODEL)
    same(function(TEXTS), embed())


@check("chromadb: JinaEmbeddingFunction", "chromadb", setting="f._api_url")
def chroma_jina() -> None:
    function: Any = chroma.JinaEmbeddingFunction(api_key_env_var="TEST_KEY", model_name=MODEL)
    function._api_url = f"{ALL}/v1/embeddings"
    same(function(TEXTS), embed())
    function = chroma.JinaEmbeddingFunction(api_key_env_var="TEST_KEY", model_name=MODEL, normalized=False)
    function._api_url = f"{ALL}/v1/embeddings"
    same(function(TEXTS), embed(normalize=False))


@check("chromadb: JinaEmbeddingFunction, embedding_type int8", "chromadb", setting="f._api_url")
def chroma_jina_int8() -> None:
    function: Any = chroma.JinaEmbeddingFunction(api_key_env_var="TEST_KEY", model_name=MODEL, embedding_type="int8")
    function._api_url = f"{ALL}/v1/embeddings"
    same(function(TEXTS), embed_as("int8"))


@check("chromadb: OllamaEmbeddingFunction", "chromadb")
def chroma_ollama() -> None:
    function: Any = chroma.OllamaEmbeddingFunction(url=EMBED, model_name=MODEL)
    same(function(TEXTS), embed())


@check("chromadb: HuggingFaceEmbeddingServer", "chromadb")
def chroma_tei() -> None:
    function: Any = chroma.HuggingFaceEmbeddingServer(url=f"{EMBED}/embed")
    same(function(TEXTS), embed())


@check("chromadb: HuggingFaceEmbeddingFunction", "chromadb", setting="f._api_url")
def chroma_hugging_face() -> None:
    function: Any = chroma.HuggingFaceEmbeddingFunction(api_key_env_var="TEST_KEY", model_name=MODEL)
    function._api_url = f"{ALL}/pipeline/feature-extraction/{MODEL}"
    same(function(TEXTS), embed())


@check("pymilvus: OpenAIEmbeddingFunction", "pymilvus-model")
def milvus_openai() -> None:
    function: Any = milvus.dense.OpenAIEmbeddingFunction(model_name=MODEL, api_key=KEY, base_url=f"{ALL}/v1")
    same(function.encode_documents(TEXTS), embed())
    same(function.encode_queries(TEXTS), embed())


@check("pymilvus: CohereEmbeddingFunction", "pymilvus-model", setting="environment: CO_API_URL")
def milvus_cohere() -> None:
    function: Any = milvus.dense.CohereEmbeddingFunction(model_name=MODEL, api_key=KEY)
    same(function.encode_documents(TEXTS), embed())


@check("pymilvus: JinaEmbeddingFunction", "pymilvus-model", setting="the constant API_URL of its module")
def milvus_jina() -> None:
    from pymilvus.model.dense import jinaai

    jinaai.API_URL = f"{ALL}/v1/embeddings"
    function: Any = milvus.dense.JinaEmbeddingFunction(model_name=MODEL, api_key=KEY)
    same(function.encode_documents(TEXTS), embed())


@check("pymilvus: JinaRerankFunction", "pymilvus-model", setting="the constant API_URL of its module")
def milvus_jina_rerank() -> None:
    from pymilvus.model.reranker import jinaai

    jinaai.API_URL = f"{ALL}/v1/rerank"
    function: Any = milvus.reranker.JinaRerankFunction(model_name=RERANKER, api_key=KEY)
    results = function(QUERY, DOCUMENTS, top_k=4)
    same([(result.index, result.score) for result in results], rank())


@check(
    "pymilvus: CohereRerankFunction",
    "pymilvus-model",
    client_bug="sends return_documents, which cohere 7 does not accept",
)
def milvus_cohere_rerank() -> None:
    function: Any = milvus.reranker.CohereRerankFunction(model_name=RERANKER, api_key=KEY)
    results = function(QUERY, DOCUMENTS, top_k=4)
    same([(result.index, result.score) for result in results], rank())


@check("pymilvus: TEIEmbeddingFunction", "pymilvus-model")
def milvus_tei() -> None:
    function: Any = milvus.dense.TEIEmbeddingFunction(api_url=EMBED)
    same(function.encode_documents(TEXTS), embed())


@check("pymilvus: TEIRerankFunction", "pymilvus-model")
def milvus_tei_rerank() -> None:
    results = milvus.reranker.TEIRerankFunction(api_url=RERANK)(QUERY, DOCUMENTS, top_k=4)
    same([(result.index, result.score) for result in results], rank())


@check("qdrant-client with openai", "qdrant-client")
def qdrant() -> None:
    with openai.OpenAI(base_url=f"{ALL}/v1", api_key=KEY) as client:
        data = client.embeddings.create(model=MODEL, input=TEXTS).data
    store = QdrantClient(":memory:")
    store.create_collection("texts", vectors_config=VectorParams(size=384, distance=Distance.COSINE))
    store.upsert("texts", [PointStruct(id=item.index, vector=item.embedding) for item in data])
    equal([point.id for point in store.query_points("texts", query=embed(TEXTS[1:2])[0], limit=1).points], [1])


if __name__ == "__main__":
    run_checks()
