"""LlamaIndex's embeddings and rerankers."""

from __future__ import annotations

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
    rank,
    run_checks,
    same,
)
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.embeddings.cohere import CohereEmbedding
from llama_index.embeddings.jinaai import JinaEmbedding
from llama_index.embeddings.nvidia import NVIDIAEmbedding
from llama_index.embeddings.ollama import OllamaEmbedding
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.postprocessor.cohere_rerank import CohereRerank
from llama_index.postprocessor.jinaai_rerank import JinaRerank
from llama_index.postprocessor.nvidia_rerank import NVIDIARerank
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

COHERE_NAME = "embed-english-v3.0"  # one of the names of the model on the server


def compare_embeddings(embedding: Any) -> None:
    same(embedding.get_text_embedding_batch(TEXTS), embed())
    same(embedding.get_query_embedding(TEXTS[0]), embed(TEXTS[:1]))


def compare_nodes(ranker: Any, expected: list[tuple[int, float]]) -> None:
    nodes = [NodeWithScore(node=TextNode(text=text, id_=str(index)), score=0) for index, text in enumerate(DOCUMENTS)]
    ranked = ranker.postprocess_nodes(nodes, QueryBundle(QUERY))
    same([(int(node.node_id), node.score) for node in ranked], expected)


@check("llama-index: OpenAILikeEmbedding", "llama-index-embeddings-openai-like")
def openai_like() -> None:
    compare_embeddings(OpenAILikeEmbedding(model_name=MODEL, api_base=f"{ALL}/v1", api_key=KEY))


@check(
    "llama-index: CohereEmbedding (float, int8, binary)",
    "llama-index-embeddings-cohere",
    setting=f"server: --served-model-name {COHERE_NAME}; the client accepts Cohere's names only",
)
def cohere() -> None:
    options: Any = {"model_name": COHERE_NAME, "base_url": ALL, "api_key": KEY, "input_type": "search_document"}
    same(CohereEmbedding(**options).get_text_embedding_batch(TEXTS), embed())
    for dtype in ("int8", "binary"):
        same(CohereEmbedding(**options, embedding_type=dtype).get_text_embedding_batch(TEXTS), embed_as(dtype))


@check("llama-index: JinaEmbedding", "llama-index-embeddings-jinaai", setting="e._api.api_url, e._aapi")
def jina() -> None:
    embedding: Any = JinaEmbedding(model=MODEL, api_key=KEY)
    embedding._api.api_url = f"{ALL}/v1/embeddings"
    compare_embeddings(embedding)


@check("llama-index: JinaEmbedding, encoding ubinary", "llama-index-embeddings-jinaai", setting="e._api.api_url")
def jina_binary() -> None:
    bits = [[(byte >> shift) & 1 for byte in row for shift in range(7, -1, -1)] for row in embed_as("ubinary")]
    for encoding in ("ubinary", "binary"):
        embedding: Any = JinaEmbedding(model=MODEL, api_key=KEY, encoding_documents=encoding)
        embedding._api.api_url = f"{ALL}/v1/embeddings"
        same(embedding.get_text_embedding_batch(TEXTS), bits)


@check("llama-index: NVIDIAEmbedding", "llama-index-embeddings-nvidia")
def nvidia() -> None:
    options: Any = {"model": MODEL, "base_url": f"{ALL}/v1", "api_key": KEY}
    compare_embeddings(NVIDIAEmbedding(**options))
    compare_embeddings(NVIDIAEmbedding(**options, truncate="END"))


@check("llama-index: OllamaEmbedding", "llama-index-embeddings-ollama")
def ollama() -> None:
    headers = {"headers": {"Authorization": f"Bearer {KEY}"}}
    compare_embeddings(OllamaEmbedding(model_name=MODEL, base_url=ALL, client_kwargs=headers))


@check("llama-index: TextEmbeddingsInference", "llama-index-embeddings-text-embeddings-inference")
def tei() -> None:
    compare_embeddings(TextEmbeddingsInference(model_name=MODEL, base_url=EMBED))
    compare_embeddings(TextEmbeddingsInference(model_name=MODEL, base_url=ALL, auth_token=KEY))


@check("llama-index: CohereRerank", "llama-index-postprocessor-cohere-rerank")
def cohere_rerank() -> None:
    compare_nodes(CohereRerank(model=RERANKER, base_url=ALL, api_key=KEY, top_n=4), rank())


@check("llama-index: JinaRerank", "llama-index-postprocessor-jinaai-rerank")
def jina_rerank() -> None:
    compare_nodes(JinaRerank(model=RERANKER, base_url=f"{ALL}/v1", api_key=KEY, top_n=4), rank())


@check("llama-index: TextEmbeddingInference rerank", "llama-index-postprocessor-tei-rerank")
def tei_rerank() -> None:
    compare_nodes(TextEmbeddingInference(base_url=RERANK, top_n=4), rank())


@check("llama-index: NVIDIARerank", "llama-index-postprocessor-nvidia-rerank")
def nvidia_rerank() -> None:
    ranker: Any = NVIDIARerank(model=RERANKER, base_url=f"{ALL}/v1", api_key=KEY, top_n=4)
    compare_nodes(ranker, rank(raw_scores=True))


if __name__ == "__main__":
    run_checks()
