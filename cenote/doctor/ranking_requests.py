"""Rerank, score and classification requests of known clients, and health checks."""

from __future__ import annotations

from cenote.doctor import answers as read
from cenote.doctor.client_request import INPUTS, NO_TYPE, Api, ClientRequest, Each

DOCUMENTS = {"model": "$MODEL", "query": "$QUERY", "documents": "$DOCUMENTS"}
OBJECTS = Each("documents", {"text": "$ITEM"})
PASSAGES = {"model": "$MODEL", "query": {"text": "$QUERY"}, "passages": OBJECTS}
MIXEDBREAD_INPUTS = {"model": "$MODEL", "query": "$QUERY", "input": "$DOCUMENTS", "top_k": 4}
TEI_TEXTS = {"query": "$QUERY", "texts": "$DOCUMENTS"}
relevance = read.ranked(["results"], "relevance_score")
vllm = Api("vLLM")
cohere = Api("Cohere")
jina = Api("Jina", "/v1/rerank")
voyage = Api("Voyage", "/v1/rerank")
infinity = Api("Infinity")
tei = Api("TEI", "/rerank")
nvidia_nim = Api("NVIDIA NIM")
mixedbread = Api("Mixedbread", "/v1/reranking")
deepinfra = Api("DeepInfra", "/inference/{model}")
weaviate = Api("Weaviate")
openai = Api("OpenAI", "/v1/moderations")
RERANK: tuple[ClientRequest, ...] = (
    vllm.scores("requests, /rerank", DOCUMENTS, relevance, path="/rerank"),
    vllm.scores(
        "requests, /score",
        {"model": "$MODEL", "text_1": "$QUERY", "text_2": "$DOCUMENTS"},
        read.scores_at(["data"], "score"),
        path="/score",
        is_ranked=False,
    ),
    cohere.scores("cohere v2", DOCUMENTS | {"top_n": 4}, relevance, path="/v2/rerank"),
    cohere.scores("cohere v1, objects", DOCUMENTS | {"documents": OBJECTS}, relevance, path="/v1/rerank"),
    jina.scores("langchain JinaRerank", DOCUMENTS | {"top_n": 4, "return_documents": True}, relevance),
    voyage.scores(
        "voyageai rerank", DOCUMENTS | {"top_k": None, "truncation": True}, read.ranked(["data"], "relevance_score")
    ),
    infinity.scores(
        "langchain InfinityRerank (raw_scores: false)",
        DOCUMENTS | {"raw_scores": False, "return_documents": False},
        relevance,
        path="/rerank",
        is_probability=True,
    ),
    tei.scores("haystack TEIRanker", TEI_TEXTS | {"raw_scores": False}, read.ranked([], "score"), is_probability=True),
    tei.scores("pymilvus TEI (return_text)", TEI_TEXTS | {"return_text": True}, read.ranked([], "score")),
    nvidia_nim.scores(
        "langchain-nvidia NVIDIARerank",
        PASSAGES | {"truncate": "END"},
        read.ranked(["rankings"], "logit"),
        path="/v1/ranking",
    ),
    nvidia_nim.scores(
        "LiteLLM nvidia_nim/",
        PASSAGES | {"top_k": 4},
        read.ranked(["rankings"], "logit"),
        path="/v1/retrieval/{model}/reranking",
    ),
    mixedbread.scores(
        "rerankers mixedbread", MIXEDBREAD_INPUTS | {"return_input": False}, read.ranked(["data"], "score")
    ),
    mixedbread.other(
        "mixedbread-ai-provider (needs completion_tokens)",
        MIXEDBREAD_INPUTS,
        read.has(("data", 0, "score"), ("usage", "completion_tokens")),
    ),
    deepinfra.scores(
        "LiteLLM deepinfra/ (query repeated)",
        {"queries": Each("documents", "$QUERY"), "documents": "$DOCUMENTS"},
        read.scores_at(["scores"]),
        is_ranked=False,
    ),
    weaviate.scores(
        "reranker-transformers",
        {"query": "$QUERY", "documents": "$DOCUMENTS", "property": ""},
        read.scores_at(["scores"], "score"),
        path="/rerank",
        headers=NO_TYPE,
        is_ranked=False,
    ),
)
CLASSIFY: tuple[ClientRequest, ...] = (
    vllm.classes("requests, /classify", INPUTS, read.vllm_classes, path="/classify"),
    tei.classes("requests, /predict", {"inputs": Each("texts", ["$ITEM"])}, read.nested_classes(), path="/predict"),
    tei.classes("requests, one text", {"inputs": "$TEXT"}, read.flat_classes, path="/predict", num_inputs=1),
    tei.classes(
        "huggingface_hub text_classification", {"inputs": "$TEXT"}, read.nested_classes(), path="/", num_inputs=1
    ),
    infinity.classes("infinity_client", INPUTS | {"raw_scores": False}, read.nested_classes("data"), path="/classify"),
    cohere.classes("cohere v1", {"model": "$MODEL", "inputs": "$TEXTS"}, read.cohere_classes, path="/v1/classify"),
    openai.classes("openai moderations", INPUTS, read.moderation_classes),
)
HEALTH: tuple[ClientRequest, ...] = (
    vllm.other("health", None, read.anything, path="/health", is_json=False),
    infinity.other("infinity_client, models", None, read.has(("data", 0, "stats"), ("data", 0, "id")), path="/models"),
    nvidia_nim.other("health", None, read.has(("ready",)), path="/v1/health/ready"),
    weaviate.other("ready", None, read.anything, path="/.well-known/ready", is_json=False),
)
