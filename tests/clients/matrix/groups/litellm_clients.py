"""litellm: its providers of embeddings and reranking; DSPy, which uses it."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise it downloads a price list

import dspy
import litellm
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
    rank,
    run_checks,
    same,
)

EMBEDDING_BASES = {
    "openai": "/v1",
    "hosted_vllm": "/v1",
    "infinity": "",
    "jina_ai": "/v1",
    "nvidia_nim": "/v1",
    "xinference": "/v1",
    "lm_studio": "/v1",
    "voyage": "/v1",
    "cohere": "/v2/embed",
    "gemini": "",
}
RERANK_BASES = {
    "cohere": "",
    "jina_ai": "",
    "hosted_vllm": "",
    "together_ai": "/v1",
    "voyage": "/v1/rerank",
    "nvidia_nim": "",
    "deepinfra": "",
}


def embed_with(provider: str, base: str, **options: Any) -> None:
    model = f"{provider}/{options.pop('model', MODEL)}"
    reply = litellm.embedding(model, input=TEXTS, api_base=base, api_key=KEY, **options)
    same([item["embedding"] for item in reply.data], embed())


def rerank_with(provider: str, base: str, **options: Any) -> None:
    reply = litellm.rerank(
        f"{provider}/{RERANKER}", query=QUERY, documents=DOCUMENTS, api_base=base, api_key=KEY, **options
    )
    expected = rank(raw_scores=True) if provider == "nvidia_nim" else rank()
    if provider == "deepinfra":  # results in the order of the documents, as there
        expected.sort()
    same([(item["index"], item["relevance_score"]) for item in reply.results], expected)


for name, path in EMBEDDING_BASES.items():
    check(f"litellm: embedding {name}/", "litellm")(partial(embed_with, name, ALL + path))
check("litellm: embedding ollama/", "litellm", setting="a server without keys; it sends none")(
    partial(embed_with, "ollama", EMBED)
)
check("litellm: embedding azure/", "litellm")(partial(embed_with, "azure", ALL, api_version="2024-10-21"))
check("litellm: embedding huggingface/", "litellm", setting='input_type="embed"; otherwise it asks the hub')(
    partial(embed_with, "huggingface", EMBED, input_type="embed")
)
check(
    "litellm: embedding cohere/ with /v1/embed",
    "litellm",
    client_bug="cannot read the plain list of version 1; set /v2/embed",
)(partial(embed_with, "cohere", f"{ALL}/v1/embed"))
for name, path in RERANK_BASES.items():
    check(f"litellm: rerank {name}/", "litellm")(partial(rerank_with, name, ALL + path))
check("litellm: rerank huggingface/", "litellm")(partial(rerank_with, "huggingface", RERANK))
check("litellm: rerank infinity/", "litellm", setting="server: --rerank-document-shape string")(
    partial(rerank_with, "infinity", RERANK)
)


@check("dspy: Embedder", "dspy")
def dspy_embedder() -> None:
    embedder = dspy.Embedder(f"openai/{MODEL}", api_base=f"{ALL}/v1", api_key=KEY, caching=False)
    same(embedder(TEXTS), embed())


if __name__ == "__main__":
    run_checks()
