"""Table of the requests of known clients; others are compared with the first one of a kind that is answered."""

from __future__ import annotations

from typing import Any

from cenote.doctor import answers as read
from cenote.doctor.client_request import AZURE_KEY, GOOGLE_KEY, INPUTS, NO_TYPE, Api, ClientRequest, Each

AZURE_PATH = "/openai/deployments/{model}/embeddings?api-version=2024-10-21"
NULLS = {"options": {"mirostat": None, "num_ctx": None, "temperature": None, "stop": None}, "keep_alive": None}
DOCUMENTS = {"model": "$MODEL", "texts": "$TEXTS", "input_type": "search_document"}
FLOATS, BASE64 = INPUTS | {"encoding_format": "float"}, INPUTS | {"encoding_format": "base64"}
GEMINI_ITEM = {"model": "models/$MODEL", "content": {"role": "user", "parts": [{"text": "$ITEM"}]}}
GEMINI_REQUESTS = {"requests": Each("texts", GEMINI_ITEM)}
GEMINI_TASKS = {"requests": Each("texts", GEMINI_ITEM | {"taskType": 2})}
GEMINI_PATH = "/models/{model}:batchEmbedContents"
GEMINI_ENUMS = "?$alt=json;enum-encoding=int"
GEMINI: dict[str, Any] = {"comparison": "nearest", "headers": GOOGLE_KEY}
gemini_values = read.each_at(["embeddings"], ["values"])
VERTEX_PATH = "/v1beta1/publishers/google/models/{model}:predict"
VOYAGE = INPUTS | {"input_type": None, "truncation": True, "output_dimension": None, "encoding_format": "base64"}
WEAVIATE = {"text": "$TEXT", "dims": 0, "vector": None, "error": "", "config": {"pooling_strategy": "masked_mean"}}
NIM = INPUTS | {"encoding_format": "float", "input_type": "passage", "truncate": "NONE"}
MESSAGES = Each("texts", [{"role": "user", "content": [{"type": "text", "text": "$ITEM"}]}])
RANKED = {"model": "$MODEL", "query": "$QUERY", "documents": "$DOCUMENTS"}
OBJECTS = Each("documents", {"text": "$ITEM"})
PASSAGES = {"model": "$MODEL", "query": {"text": "$QUERY"}, "passages": OBJECTS}
MIXEDBREAD_INPUTS = {"model": "$MODEL", "query": "$QUERY", "input": "$DOCUMENTS", "top_k": 4}
TEI_TEXTS = {"query": "$QUERY", "texts": "$DOCUMENTS"}
relevance = read.ranked(["results"], "relevance_score")

# with their usual paths
openai = Api("OpenAI", "/v1/embeddings")
azure = Api("Azure OpenAI", AZURE_PATH)
tei = Api("TEI", "/")
ollama = Api("Ollama", "/api/embed")
cohere = Api("Cohere", "/v2/embed")
voyage = Api("Voyage", "/v1/embeddings")
jina = Api("Jina", "/v1/embeddings")
nvidia = Api("NVIDIA NIM", "/v1/embeddings")
gemini = Api("Gemini", f"/v1beta{GEMINI_PATH}")
vertex = Api("Vertex AI", VERTEX_PATH)
weaviate = Api("Weaviate", "/vectors")
llama_cpp = Api("llama.cpp", "/embedding")
deepinfra = Api("DeepInfra", "/v1/inference/{model}")
textembed = Api("TextEmbed", "/v1/embedding")
vllm = Api("vLLM", "/v1/embeddings")
infinity = Api("Infinity", "/rerank")
mixedbread = Api("Mixedbread", "/v1/reranking")

CLIENT_REQUESTS: tuple[ClientRequest, ...] = (
    # embeddings
    openai.vectors("openai, float", FLOATS, read.openai_vectors),
    openai.vectors("openai, base64 (default of the SDK)", BASE64, read.openai_base64),
    openai.vectors("openai, one string", INPUTS | {"input": "$TEXT"}, read.openai_vectors, num_inputs=1),
    openai.vectors("dspy (encoding_format: null)", INPUTS | {"encoding_format": None}, read.openai_vectors),
    openai.vectors("requests, base URL with a slash", INPUTS, read.openai_vectors, path="//v1/embeddings"),
    openai.vectors("Infinity clients without /v1", INPUTS, read.openai_vectors, path="/embeddings"),
    openai.other("openai, models.list", None, read.has(("data", 0, "id"), ("data", 0, "object")), path="/v1/models"),
    azure.vectors(
        "AzureOpenAI", {"input": "$TEXTS", "encoding_format": "float"}, read.openai_vectors, headers=AZURE_KEY
    ),
    tei.vectors(
        "llama-index TextEmbeddingsInference",
        {"inputs": "$TEXTS", "truncate": True},
        read.rows_at(),
        path="/embed",
        is_unit=True,
    ),
    tei.vectors("chromadb, one text", {"inputs": "$TEXT"}, read.rows_at(), path="/embed", is_unit=True, num_inputs=1),
    tei.vectors("huggingface_hub feature_extraction", {"inputs": "$TEXTS"}, read.rows_at()),
    tei.vectors(
        "haystack HuggingFaceAPI (normalize: false)",
        {"inputs": "$TEXTS", "normalize": False, "truncate": True},
        read.rows_at(),
        comparison="direction",
    ),
    tei.vectors(
        "chromadb HuggingFaceEmbeddingFunction",
        {"inputs": "$TEXTS", "options": {"wait_for_model": True}},
        read.rows_at(),
        path="/pipeline/feature-extraction/{model}",
    ),
    tei.other(
        "huggingface_hub sentence_similarity",
        {"inputs": {"source_sentence": "$QUERY", "sentences": "$DOCUMENTS"}},
        read.scores_at(()),
        path="/similarity",
    ),
    tei.other("haystack TEISparse", {"inputs": "$TEXTS"}, read.sparse_rows, path="/embed_sparse"),
    tei.other("requests, /tokenize", {"inputs": "$TEXT"}, read.has((0, 0, "id"), (0, 0, "special")), path="/tokenize"),
    tei.other("info", None, read.has(("model_id",), ("max_input_length",)), path="/info"),
    ollama.vectors("ollama", INPUTS, read.rows_at("embeddings"), is_unit=True),
    ollama.vectors(
        "langchain-ollama (options of nulls)",
        INPUTS | {"truncate": None} | NULLS,
        read.rows_at("embeddings"),
        is_unit=True,
        headers=NO_TYPE,
    ),
    ollama.vectors(
        "llama-index Ollama",
        {"model": "$MODEL", "prompt": "$TEXT", "options": {}},
        read.row_at("embedding"),
        path="/api/embeddings",
        comparison="direction",
        num_inputs=1,
    ),
    ollama.other("ollama list", None, read.has(("models", 0, "name"), ("models", 0, "details")), path="/api/tags"),
    ollama.other("ollama show", {"model": "$MODEL"}, read.has(("details",), ("model_info",)), path="/api/show"),
    *(
        cohere.vectors(
            f"cohere v2, {name}", DOCUMENTS | {"embedding_types": [name]}, read.cohere_type(name), comparison="nearest"
        )
        for name in ("float", "int8", "uint8", "binary", "ubinary", "base64")
    ),
    cohere.vectors(
        "cohere v1", DOCUMENTS | {"truncate": "END"}, read.rows_at("embeddings"), path="/v1/embed", comparison="nearest"
    ),
    cohere.other(
        "cohere v1, tokenize",
        {"text": "$TEXT", "model": "$MODEL"},
        read.has(("tokens", 0), ("token_strings", 0)),
        path="/v1/tokenize",
    ),
    voyage.vectors("voyageai, float", VOYAGE | {"output_dtype": "float"}, read.openai_base64),
    voyage.vectors("voyageai, int8", VOYAGE | {"output_dtype": "int8"}, read.openai_base64_int8, comparison="int8"),
    voyage.vectors(
        "voyageai, ubinary", VOYAGE | {"output_dtype": "ubinary"}, read.openai_base64_ubinary, comparison="bits"
    ),
    voyage.vectors("LiteLLM voyage/ (no Content-Type)", INPUTS, read.openai_float_vectors, headers=NO_TYPE),
    jina.vectors(
        "Jina, objects with text",
        INPUTS | {"input": Each("texts", {"text": "$ITEM"}), "normalized": True},
        read.openai_float_vectors,
        is_unit=True,
    ),
    jina.vectors(
        "LightRAG (task: text-matching)",
        INPUTS | {"task": "text-matching"},
        read.openai_float_vectors,
        comparison="nearest",
    ),
    jina.vectors(
        "chromadb Jina, ubinary", INPUTS | {"embedding_type": "ubinary"}, read.openai_ubinary, comparison="bits"
    ),
    jina.vectors(
        "llama-index Jina, binary", INPUTS | {"encoding_type": "binary"}, read.openai_binary, comparison="bits"
    ),
    nvidia.vectors("langchain-nvidia NVIDIAEmbeddings", NIM, read.openai_vectors, comparison="nearest"),
    gemini.vectors("google-genai", GEMINI_REQUESTS, gemini_values, **GEMINI),
    gemini.vectors(
        "langchain-google-genai (taskType: 2)",
        GEMINI_TASKS,
        gemini_values,
        path=f"/v1beta{GEMINI_PATH}{GEMINI_ENUMS}",
        **GEMINI,
    ),
    gemini.vectors("LiteLLM gemini/ (no version)", GEMINI_REQUESTS, gemini_values, path=GEMINI_PATH, **GEMINI),
    vertex.vectors(
        "google-genai (Vertex)",
        {"instances": Each("texts", {"content": "$ITEM"}), "parameters": {"autoTruncate": True}},
        read.each_at(["predictions"], ["embeddings", "values"]),
        comparison="nearest",
        headers=GOOGLE_KEY,
    ),
    weaviate.vectors("text2vec-transformers", WEAVIATE, read.row_at("vector"), headers=NO_TYPE, num_inputs=1),
    llama_cpp.vectors(
        "langchain Llamafile", {"content": "$TEXT"}, read.row_at("embedding"), comparison="direction", num_inputs=1
    ),
    deepinfra.vectors("DeepInfra", {"inputs": "$TEXTS"}, read.rows_at("embeddings"), comparison="direction"),
    textembed.vectors("langchain TextEmbed", INPUTS, read.openai_float_vectors),
    vllm.vectors(
        "mteb (messages of one text)",
        {"model": "$MODEL", "messages": MESSAGES},
        read.openai_vectors,
        comparison="nearest",
    ),
    vllm.vectors("requests, /pooling", INPUTS | {"task": "embed"}, read.each_at(["data"], ["data"]), path="/pooling"),
    vllm.other(
        "tokenize", {"model": "$MODEL", "prompt": "$TEXT"}, read.has(("tokens", 0), ("count",)), path="/tokenize"
    ),
    # scores
    vllm.scores("requests, /rerank", RANKED, relevance, path="/rerank"),
    vllm.scores(
        "requests, /score",
        {"model": "$MODEL", "text_1": "$QUERY", "text_2": "$DOCUMENTS"},
        read.scores_at(["data"], "score"),
        path="/score",
        is_ranked=False,
    ),
    cohere.scores("cohere v2", RANKED | {"top_n": 4}, relevance, path="/v2/rerank"),
    cohere.scores("cohere v1, objects", RANKED | {"documents": OBJECTS}, relevance, path="/v1/rerank"),
    jina.scores("langchain JinaRerank", RANKED | {"top_n": 4, "return_documents": True}, relevance, path="/v1/rerank"),
    voyage.scores(
        "voyageai rerank",
        RANKED | {"top_k": None, "truncation": True},
        read.ranked(["data"], "relevance_score"),
        path="/v1/rerank",
    ),
    infinity.scores(
        "langchain InfinityRerank (raw_scores: false)",
        RANKED | {"raw_scores": False, "return_documents": False},
        relevance,
        is_probability=True,
    ),
    tei.scores(
        "haystack TEIRanker",
        TEI_TEXTS | {"raw_scores": False},
        read.ranked([], "score"),
        path="/rerank",
        is_probability=True,
    ),
    tei.scores(
        "pymilvus TEI (return_text)", TEI_TEXTS | {"return_text": True}, read.ranked([], "score"), path="/rerank"
    ),
    nvidia.scores(
        "langchain-nvidia NVIDIARerank",
        PASSAGES | {"truncate": "END"},
        read.ranked(["rankings"], "logit"),
        path="/v1/ranking",
    ),
    nvidia.scores(
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
        path="/inference/{model}",
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
    # classes
    vllm.classes("requests, /classify", INPUTS, read.vllm_classes, path="/classify"),
    tei.classes("requests, /predict", {"inputs": Each("texts", ["$ITEM"])}, read.nested_classes(), path="/predict"),
    tei.classes("requests, one text", {"inputs": "$TEXT"}, read.flat_classes, path="/predict", num_inputs=1),
    tei.classes("huggingface_hub text_classification", {"inputs": "$TEXT"}, read.nested_classes(), num_inputs=1),
    infinity.classes("infinity_client", INPUTS | {"raw_scores": False}, read.nested_classes("data"), path="/classify"),
    cohere.classes("cohere v1", {"model": "$MODEL", "inputs": "$TEXTS"}, read.cohere_classes, path="/v1/classify"),
    openai.classes("openai moderations", INPUTS, read.moderation_classes, path="/v1/moderations"),
    # health
    vllm.other("health", None, read.anything, path="/health", is_json=False),
    infinity.other("infinity_client, models", None, read.has(("data", 0, "stats"), ("data", 0, "id")), path="/models"),
    nvidia.other("health", None, read.has(("ready",)), path="/v1/health/ready"),
    weaviate.other("ready", None, read.anything, path="/.well-known/ready", is_json=False),
)
