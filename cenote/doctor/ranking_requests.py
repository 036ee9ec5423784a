"""Rerank, score and classification requests of known clients, and health checks."""

from __future__ import annotations

from cenote.doctor import answers as read
from cenote.doctor.client_request import INPUTS, NO_TYPE, ClientRequest, Each, classes, other, scores

DOCUMENTS = {"model": "$MODEL", "query": "$QUERY", "documents": "$DOCUMENTS"}
OBJECTS = Each("documents", {"text": "$ITEM"})
PASSAGES = {"model": "$MODEL", "query": {"text": "$QUERY"}, "passages": OBJECTS}
MIXEDBREAD_INPUTS = {"model": "$MODEL", "query": "$QUERY", "input": "$DOCUMENTS", "top_k": 4}
TEI_TEXTS = {"query": "$QUERY", "texts": "$DOCUMENTS"}
relevance = read.ranked(["results"], "relevance_score")
RERANK: tuple[ClientRequest, ...] = (
    scores("vLLM", "requests, /rerank", "/rerank", DOCUMENTS, relevance),
    scores(
        "vLLM",
        "requests, /score",
        "/score",
        {"model": "$MODEL", "text_1": "$QUERY", "text_2": "$DOCUMENTS"},
        read.scores_at(["data"], "score"),
        is_ranked=False,
    ),
    scores("Cohere", "cohere v2", "/v2/rerank", DOCUMENTS | {"top_n": 4}, relevance),
    scores("Cohere", "cohere v1, objects", "/v1/rerank", DOCUMENTS | {"documents": OBJECTS}, relevance),
    scores("Jina", "langchain JinaRerank", "/v1/rerank", DOCUMENTS | {"top_n": 4, "return_documents": True}, relevance),
    scores(
        "Voyage",
        "voyageai rerank",
        "/v1/rerank",
        DOCUMENTS | {"top_k": None, "truncation": True},
        read.ranked(["data"], "relevance_score"),
    ),
    scores(
        "Infinity",
        "langchain InfinityRerank (raw_scores: false)",
        "/rerank",
        DOCUMENTS | {"raw_scores": False, "return_documents": False},
        relevance,
        is_probability=True,
    ),
    scores(
        "TEI",
        "haystack TEIRanker",
        "/rerank",
        TEI_TEXTS | {"raw_scores": False},
        read.ranked([], "score"),
        is_probability=True,
    ),
    scores("TEI", "pymilvus TEI (return_text)", "/rerank", TEI_TEXTS | {"return_text": True}, read.ranked([], "score")),
    scores(
        "NVIDIA NIM",
        "langchain-nvidia NVIDIARerank",
        "/v1/ranking",
        PASSAGES | {"truncate": "END"},
        read.ranked(["rankings"], "logit"),
    ),
    scores(
        "NVIDIA NIM",
        "LiteLLM nvidia_nim/",
        "/v1/retrieval/{model}/reranking",
        PASSAGES | {"top_k": 4},
        read.ranked(["rankings"], "logit"),
    ),
    scores(
        "Mixedbread",
        "rerankers mixedbread",
        "/v1/reranking",
        MIXEDBREAD_INPUTS | {"return_input": False},
        read.ranked(["data"], "score"),
    ),
    other(
        "Mixedbread",
        "mixedbread-ai-provider (needs completion_tokens)",
        "/v1/reranking",
        MIXEDBREAD_INPUTS,
        read.has(("data", 0, "score"), ("usage", "completion_tokens")),
    ),
    scores(
        "DeepInfra",
        "LiteLLM deepinfra/ (query repeated)",
        "/inference/{model}",
        {"queries": Each("documents", "$QUERY"), "documents": "$DOCUMENTS"},
        read.scores_at(["scores"]),
        is_ranked=False,
    ),
    scores(
        "Weaviate",
        "reranker-transformers",
        "/rerank",
        {"query": "$QUERY", "documents": "$DOCUMENTS", "property": ""},
        read.scores_at(["scores"], "score"),
        headers=NO_TYPE,
        is_ranked=False,
    ),
)
CLASSIFY: tuple[ClientRequest, ...] = (
    classes("vLLM", "requests, /classify", "/classify", INPUTS, read.vllm_classes),
    classes("TEI", "requests, /predict", "/predict", {"inputs": Each("texts", ["$ITEM"])}, read.nested_classes()),
    classes("TEI", "requests, one text", "/predict", {"inputs": "$TEXT"}, read.flat_classes, num_inputs=1),
    classes(
        "TEI", "huggingface_hub text_classification", "/", {"inputs": "$TEXT"}, read.nested_classes(), num_inputs=1
    ),
    classes("Infinity", "infinity_client", "/classify", INPUTS | {"raw_scores": False}, read.nested_classes("data")),
    classes("Cohere", "cohere v1", "/v1/classify", {"model": "$MODEL", "inputs": "$TEXTS"}, read.cohere_classes),
    classes("OpenAI", "openai moderations", "/v1/moderations", INPUTS, read.moderation_classes),
)
HEALTH: tuple[ClientRequest, ...] = (
    other("vLLM", "health", "/health", None, read.anything, is_json=False),
    other("Infinity", "infinity_client, models", "/models", None, read.has(("data", 0, "stats"), ("data", 0, "id"))),
    other("NVIDIA NIM", "health", "/v1/health/ready", None, read.has(("ready",))),
    other("Weaviate", "ready", "/.well-known/ready", None, read.anything, is_json=False),
)
