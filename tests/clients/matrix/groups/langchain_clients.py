"""LangChain's integrations."""

from __future__ import annotations

import os
from typing import Any

os.environ |= {"LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false", "USER_AGENT": "checks"}

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
    equal,
    rank,
    run_checks,
    same,
)
from huggingface_hub import InferenceClient
from langchain_cohere import CohereEmbeddings, CohereRerank
from langchain_community.document_compressors.infinity_rerank import InfinityRerank
from langchain_community.document_compressors.jina_rerank import JinaRerank
from langchain_community.embeddings import (
    InfinityEmbeddings,
    JinaEmbeddings,
    LlamafileEmbeddings,
    TextEmbedEmbeddings,
    VoyageEmbeddings,
)
from langchain_community.embeddings import OllamaEmbeddings as CommunityOllamaEmbeddings
from langchain_core.documents import Document
from langchain_google_genai import GoogleGenerativeAIEmbeddings
from langchain_huggingface import HuggingFaceEndpointEmbeddings
from langchain_nvidia_ai_endpoints import NVIDIAEmbeddings, NVIDIARerank
from langchain_ollama import OllamaEmbeddings
from langchain_openai import AzureOpenAIEmbeddings, OpenAIEmbeddings
from langchain_voyageai import VoyageAIEmbeddings, VoyageAIRerank

HUB_CLIENT = "e.client = InferenceClient(model=URL); it accepts names of the hub only"
PAGES = [Document(page_content=text, metadata={"index": index}) for index, text in enumerate(DOCUMENTS)]


def compare_embeddings(embeddings: Any) -> None:
    same(embeddings.embed_documents(TEXTS), embed())
    same(embeddings.embed_query(TEXTS[0]), embed(TEXTS[:1]))


def compare_pages(pages: Any, expected: list[tuple[int, float]]) -> None:
    same([(page.metadata["index"], page.metadata["relevance_score"]) for page in pages], expected)


@check("langchain-openai: OpenAIEmbeddings", "langchain-openai", setting="check_embedding_ctx_length=False")
async def openai() -> None:
    options: Any = {"model": MODEL, "base_url": f"{ALL}/v1", "api_key": KEY, "check_embedding_ctx_length": False}
    compare_embeddings(OpenAIEmbeddings(**options))
    same(await OpenAIEmbeddings(**options).aembed_documents(TEXTS), embed())
    same(OpenAIEmbeddings(**options, dimensions=64).embed_documents(TEXTS), embed(dimensions=64))


@check("langchain-openai: AzureOpenAIEmbeddings", "langchain-openai", setting="check_embedding_ctx_length=False")
def azure() -> None:
    options: Any = {"azure_endpoint": ALL, "api_key": KEY, "api_version": "2024-10-21"}
    compare_embeddings(AzureOpenAIEmbeddings(model=MODEL, check_embedding_ctx_length=False, **options))


@check("langchain-cohere: CohereEmbeddings", "langchain-cohere")
def cohere() -> None:
    options: Any = {"cohere_api_key": KEY, "base_url": ALL}
    compare_embeddings(CohereEmbeddings(model=MODEL, **options))


@check("langchain-cohere: CohereRerank", "langchain-cohere")
def cohere_rerank() -> None:
    options: Any = {"cohere_api_key": KEY, "base_url": ALL, "top_n": 4}
    compare_pages(CohereRerank(model=RERANKER, **options).compress_documents(PAGES, QUERY), rank())


@check("langchain-ollama: OllamaEmbeddings", "langchain-ollama")
def ollama() -> None:
    headers = {"headers": {"Authorization": f"Bearer {KEY}"}}
    compare_embeddings(OllamaEmbeddings(model=MODEL, base_url=ALL, client_kwargs=headers))


@check("langchain-google-genai: GoogleGenerativeAIEmbeddings", "langchain-google-genai", setting='transport="rest"')
def gemini() -> None:
    options: Any = {"model": f"models/{MODEL}", "google_api_key": KEY, "base_url": ALL, "transport": "rest"}
    compare_embeddings(GoogleGenerativeAIEmbeddings(**options))


@check("langchain-nvidia: NVIDIAEmbeddings", "langchain-nvidia-ai-endpoints")
def nvidia() -> None:
    options: Any = {"model": MODEL, "base_url": f"{ALL}/v1", "api_key": KEY}
    compare_embeddings(NVIDIAEmbeddings(**options))
    compare_embeddings(NVIDIAEmbeddings(**options, truncate="END"))


@check("langchain-nvidia: NVIDIARerank", "langchain-nvidia-ai-endpoints")
def nvidia_rerank() -> None:
    ranker: Any = NVIDIARerank(model=RERANKER, base_url=f"{ALL}/v1", api_key=KEY, top_n=4)
    compare_pages(ranker.compress_documents(PAGES, QUERY), rank(raw_scores=True))


@check(
    "langchain-voyageai: VoyageAIEmbeddings",
    "langchain-voyageai",
    client_bug="counts tokens with the tokenizer voyageai/MODEL, which it downloads from the hub",
)
def voyage() -> None:
    import voyageai

    options: Any = {"model": MODEL, "api_key": KEY, "batch_size": 8}
    embeddings = VoyageAIEmbeddings(**options)
    embeddings._client = voyageai.Client(api_key=KEY, base_url=f"{ALL}/v1")
    compare_embeddings(embeddings)


@check("langchain-voyageai: VoyageAIRerank", "langchain-voyageai", setting="r.client = voyageai.Client(base_url=...)")
def voyage_rerank() -> None:
    import voyageai

    options: Any = {"model": RERANKER, "api_key": KEY, "top_k": 4}
    ranker = VoyageAIRerank(**options)
    ranker.client = voyageai.Client(api_key=KEY, base_url=f"{ALL}/v1")
    compare_pages(ranker.compress_documents(PAGES, QUERY), rank())


@check("langchain-community: InfinityEmbeddings", "langchain-community")
def infinity() -> None:
    compare_embeddings(InfinityEmbeddings(model=MODEL, infinity_api_url=EMBED))
    compare_embeddings(InfinityEmbeddings(model=MODEL, infinity_api_url=f"{EMBED}/v1"))


@check("langchain-community: InfinityRerank", "langchain-community")
def infinity_rerank() -> None:
    from infinity_client import Client

    ranker: Any = InfinityRerank(model=RERANKER, client=Client(base_url=RERANK), top_n=4)
    compare_pages(ranker.compress_documents(PAGES, QUERY), rank())


@check("langchain-community: JinaEmbeddings", "langchain-community", setting="jina_embeddings.JINA_API_URL")
def jina() -> None:
    from langchain_community.embeddings import jina as module

    module.JINA_API_URL = f"{ALL}/v1/embeddings"
    options: Any = {"model_name": MODEL, "jina_api_key": KEY}
    compare_embeddings(JinaEmbeddings(**options))


@check("langchain-community: JinaRerank", "langchain-community", setting="jina_rerank.JINA_API_URL")
def jina_rerank() -> None:
    from langchain_community.document_compressors import jina_rerank as module

    module.JINA_API_URL = f"{ALL}/v1/rerank"
    options: Any = {"model": RERANKER, "jina_api_key": KEY, "top_n": 4}
    compare_pages(JinaRerank(**options).compress_documents(PAGES, QUERY), rank())


@check("langchain-community: VoyageEmbeddings", "langchain-community")
def community_voyage() -> None:
    options: Any = {"model": MODEL, "voyage_api_key": KEY, "voyage_api_base": f"{ALL}/v1/embeddings", "batch_size": 8}
    compare_embeddings(VoyageEmbeddings(**options))


@check("langchain-community: TextEmbedEmbeddings", "langchain-community")
def text_embed() -> None:
    options: Any = {"model": MODEL, "api_url": f"{ALL}/v1", "api_key": KEY}
    compare_embeddings(TextEmbedEmbeddings(**options))


@check(
    "langchain-community: OllamaEmbeddings", "langchain-community", setting='embed_instruction="", query_instruction=""'
)
def community_ollama() -> None:
    options: Any = {"model": MODEL, "base_url": EMBED, "embed_instruction": "", "query_instruction": ""}
    embeddings = CommunityOllamaEmbeddings(**options)
    same(embeddings.embed_documents(TEXTS), embed(normalize=False))  # it uses the older route


@check("langchain-community: LlamafileEmbeddings", "langchain-community")
def llamafile() -> None:
    compare_embeddings(LlamafileEmbeddings(base_url=EMBED))


@check(
    "langchain-huggingface: HuggingFaceEndpointEmbeddings",
    "langchain-huggingface",
    setting="e.client = InferenceClient(model=URL)",
)
def hugging_face() -> None:
    options: Any = {"model": "sentence-transformers/all-MiniLM-L6-v2", "huggingfacehub_api_token": KEY}
    embeddings = HuggingFaceEndpointEmbeddings(**options)
    embeddings.client = InferenceClient(model=EMBED)
    equal(len(embeddings.embed_query(TEXTS[0])) > 0, True)
    compare_embeddings(embeddings)


if __name__ == "__main__":
    run_checks()
