"""Embedders of agent frameworks: pydantic-ai, Semantic Kernel, Agno."""

from __future__ import annotations

from typing import Any

from agno.knowledge.embedder.jina import JinaEmbedder
from agno.knowledge.embedder.openai import OpenAIEmbedder
from checks import ALL, KEY, MODEL, TEXTS, check, embed, run_checks, same
from cohere import AsyncClientV2
from openai import AsyncOpenAI
from pydantic_ai import Embedder
from pydantic_ai.embeddings.cohere import CohereEmbeddingModel
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.providers.cohere import CohereProvider
from pydantic_ai.providers.ollama import OllamaProvider
from pydantic_ai.providers.openai import OpenAIProvider
from semantic_kernel.connectors.ai.open_ai import OpenAITextEmbedding


async def compare_embedder(model: Any) -> None:
    same((await Embedder(model).embed_documents(TEXTS)).embeddings, embed())


@check("pydantic-ai: OpenAIProvider, OllamaProvider", "pydantic-ai-slim")
async def pydantic_openai() -> None:
    await compare_embedder(OpenAIEmbeddingModel(MODEL, provider=OpenAIProvider(base_url=f"{ALL}/v1", api_key=KEY)))
    await compare_embedder(OpenAIEmbeddingModel(MODEL, provider=OllamaProvider(base_url=f"{ALL}/v1", api_key=KEY)))


@check("pydantic-ai: CohereProvider", "pydantic-ai-slim")
async def pydantic_cohere() -> None:
    client = AsyncClientV2(api_key=KEY, base_url=ALL)
    await compare_embedder(CohereEmbeddingModel(MODEL, provider=CohereProvider(cohere_client=client)))


@check("semantic-kernel: OpenAITextEmbedding", "semantic-kernel")
async def semantic_kernel() -> None:
    client = AsyncOpenAI(base_url=f"{ALL}/v1", api_key=KEY)
    same(await OpenAITextEmbedding(ai_model_id=MODEL, async_client=client).generate_embeddings(TEXTS), embed())


@check("agno: OpenAIEmbedder", "agno", setting="dimensions=384; it sends 1536 unasked")
def agno_openai() -> None:
    embedder = OpenAIEmbedder(id=MODEL, base_url=f"{ALL}/v1", api_key=KEY, dimensions=384)
    same([embedder.get_embedding(text) for text in TEXTS], embed())


@check("agno: JinaEmbedder", "agno", setting="dimensions=384; it sends 1024 unasked")
def agno_jina() -> None:
    embedder = JinaEmbedder(id=MODEL, base_url=f"{ALL}/v1/embeddings", api_key=KEY, dimensions=384)
    same([embedder.get_embedding(text) for text in TEXTS], embed())


if __name__ == "__main__":
    run_checks()
