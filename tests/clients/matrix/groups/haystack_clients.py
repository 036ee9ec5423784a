"""Haystack's embedders and rankers."""

from __future__ import annotations

import os
from typing import Any

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

from checks import (
    ALL,
    DOCUMENTS,
    EMBED,
    KEY,
    MODEL,
    QUERY,
    RERANK,
    RERANKER,
    SPARSE,
    TEXTS,
    check,
    embed,
    embed_as,
    equal,
    rank,
    run_checks,
    same,
    sparse,
)
from haystack import Document
from haystack.components.embedders import (
    AzureOpenAIDocumentEmbedder,
    AzureOpenAITextEmbedder,
    OpenAIDocumentEmbedder,
    OpenAITextEmbedder,
)
from haystack.utils import Secret
from haystack_integrations.components.embedders.cohere import CohereDocumentEmbedder, CohereTextEmbedder
from haystack_integrations.components.embedders.huggingface_api import (
    HuggingFaceAPIDocumentEmbedder,
    HuggingFaceAPITextEmbedder,
    HuggingFaceTEISparseDocumentEmbedder,
    HuggingFaceTEISparseTextEmbedder,
)
from haystack_integrations.components.embedders.jina import JinaDocumentEmbedder, JinaTextEmbedder
from haystack_integrations.components.embedders.ollama import OllamaDocumentEmbedder, OllamaTextEmbedder
from haystack_integrations.components.embedders.vllm import VLLMDocumentEmbedder, VLLMTextEmbedder
from haystack_integrations.components.rankers.cohere import CohereRanker
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from haystack_integrations.components.rankers.jina import JinaRanker
from haystack_integrations.components.rankers.vllm import VLLMRanker

SECRET = Secret.from_token(KEY)
FULL_URL = "base_url: the full URL of the route"


def compare_embedders(text_embedder: Any, document_embedder: Any, expected: Any = None) -> None:
    for embedder in (text_embedder, document_embedder):
        if hasattr(embedder, "warm_up"):
            embedder.warm_up()
    expected = embed() if expected is None else expected
    same(text_embedder.run(text=TEXTS[0])["embedding"], expected[0])
    documents = document_embedder.run(documents=[Document(content=text) for text in TEXTS])["documents"]
    same([document.embedding for document in documents], expected)


def compare_ranker(ranker: Any, expected: list[tuple[int, float]]) -> None:
    documents = [Document(content=text, meta={"index": index}) for index, text in enumerate(DOCUMENTS)]
    if hasattr(ranker, "warm_up"):
        ranker.warm_up()
    ranked = ranker.run(query=QUERY, documents=documents, top_k=4)["documents"]
    same([(document.meta["index"], document.score) for document in ranked], expected)


@check("haystack: OpenAITextEmbedder, OpenAIDocumentEmbedder", "haystack-ai")
def openai() -> None:
    options: Any = {"api_key": SECRET, "api_base_url": f"{ALL}/v1", "model": MODEL}
    compare_embedders(OpenAITextEmbedder(**options), OpenAIDocumentEmbedder(**options, progress_bar=False))


@check("haystack: AzureOpenAITextEmbedder, AzureOpenAIDocumentEmbedder", "haystack-ai")
def azure() -> None:
    options: Any = {"api_key": SECRET, "azure_endpoint": ALL, "azure_deployment": MODEL}
    documents = AzureOpenAIDocumentEmbedder(**options, progress_bar=False)
    compare_embedders(AzureOpenAITextEmbedder(**options), documents)


@check("haystack: HuggingFaceAPITextEmbedder, HuggingFaceAPIDocumentEmbedder", "huggingface-api-haystack")
def hugging_face() -> None:
    options: Any = {"api_type": "text_embeddings_inference", "api_params": {"url": EMBED}, "normalize": True}
    documents = HuggingFaceAPIDocumentEmbedder(**options, progress_bar=False)
    compare_embedders(HuggingFaceAPITextEmbedder(**options), documents)


@check("haystack: HuggingFaceAPI embedders with normalize=False, their default", "huggingface-api-haystack")
def hugging_face_raw() -> None:
    options: Any = {"api_type": "text_embeddings_inference", "api_params": {"url": EMBED}}
    documents = HuggingFaceAPIDocumentEmbedder(**options, progress_bar=False)
    compare_embedders(HuggingFaceAPITextEmbedder(**options), documents, embed(normalize=False))


@check("haystack: HuggingFaceTEISparseTextEmbedder, HuggingFaceTEISparseDocumentEmbedder", "huggingface-api-haystack")
def tei_sparse() -> None:
    expected = sparse()
    text_embedder: Any = HuggingFaceTEISparseTextEmbedder(api_base_url=SPARSE)
    document_embedder: Any = HuggingFaceTEISparseDocumentEmbedder(api_base_url=SPARSE, progress_bar=False)
    for embedder in (text_embedder, document_embedder):
        if hasattr(embedder, "warm_up"):
            embedder.warm_up()
    vectors = [text_embedder.run(text=text)["sparse_embedding"] for text in TEXTS]
    documents = document_embedder.run(documents=[Document(content=text) for text in TEXTS])["documents"]
    vectors += [document.sparse_embedding for document in documents]
    for vector, weights in zip(vectors, expected * 2, strict=True):
        found = dict(zip(vector.indices, vector.values, strict=True))
        equal(sorted(found), sorted(weights))
        same([found[index] for index in weights], list(weights.values()))


@check("haystack: HuggingFaceTEIRanker", "huggingface-api-haystack")
def tei_ranker() -> None:
    compare_ranker(HuggingFaceTEIRanker(url=RERANK, top_k=4), rank())


@check("haystack: CohereTextEmbedder, CohereDocumentEmbedder", "cohere-haystack")
def cohere() -> None:
    options: Any = {"api_key": SECRET, "api_base_url": ALL, "model": MODEL}
    compare_embedders(CohereTextEmbedder(**options), CohereDocumentEmbedder(**options, progress_bar=False))


@check("haystack: Cohere embedders in int8", "cohere-haystack")
def cohere_int8() -> None:
    from haystack_integrations.components.embedders.cohere.embedding_types import EmbeddingTypes

    options: Any = {"api_key": SECRET, "api_base_url": ALL, "model": MODEL, "embedding_type": EmbeddingTypes.INT8}
    documents = CohereDocumentEmbedder(**options, progress_bar=False)
    compare_embedders(CohereTextEmbedder(**options), documents, embed_as("int8"))


@check("haystack: CohereRanker", "cohere-haystack")
def cohere_ranker() -> None:
    compare_ranker(CohereRanker(model=RERANKER, api_key=SECRET, api_base_url=ALL), rank())


@check(
    "haystack: JinaTextEmbedder, JinaDocumentEmbedder", "jina-haystack", setting="base_url: the full URL of the route"
)
def jina() -> None:
    options: Any = {"api_key": SECRET, "base_url": f"{ALL}/v1/embeddings", "model": MODEL}
    compare_embedders(JinaTextEmbedder(**options), JinaDocumentEmbedder(**options, progress_bar=False))


@check("haystack: JinaRanker", "jina-haystack", setting=FULL_URL)
def jina_ranker() -> None:
    compare_ranker(JinaRanker(model=RERANKER, api_key=SECRET, base_url=f"{ALL}/v1/rerank"), rank())


@check("haystack: OllamaTextEmbedder, OllamaDocumentEmbedder", "ollama-haystack")
def ollama() -> None:
    options: Any = {"url": EMBED, "model": MODEL}
    compare_embedders(OllamaTextEmbedder(**options), OllamaDocumentEmbedder(**options, progress_bar=False))


@check("haystack: VLLMTextEmbedder, VLLMDocumentEmbedder", "vllm-haystack")
def vllm() -> None:
    options: Any = {"api_key": SECRET, "api_base_url": f"{ALL}/v1", "model": MODEL}
    compare_embedders(VLLMTextEmbedder(**options), VLLMDocumentEmbedder(**options, progress_bar=False))


@check("haystack: VLLMRanker", "vllm-haystack")
def vllm_ranker() -> None:
    compare_ranker(VLLMRanker(model=RERANKER, api_key=SECRET, api_base_url=f"{ALL}/v1"), rank())


if __name__ == "__main__":
    run_checks()
