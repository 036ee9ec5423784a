"""Embedding requests of the clients of OpenAI, Text Embeddings Inference, Ollama and Cohere."""

from __future__ import annotations

from cenote.doctor import answers as read
from cenote.doctor.client_request import AZURE_KEY, INPUTS, NO_TYPE, Api, ClientRequest

AZURE_PATH = "/openai/deployments/{model}/embeddings?api-version=2024-10-21"
NULLS = {"options": {"mirostat": None, "num_ctx": None, "temperature": None, "stop": None}, "keep_alive": None}
DOCUMENTS = {"model": "$MODEL", "texts": "$TEXTS", "input_type": "search_document"}
FLOATS, BASE64 = INPUTS | {"encoding_format": "float"}, INPUTS | {"encoding_format": "base64"}
openai = Api("OpenAI", "/v1/embeddings")
azure_openai = Api("Azure OpenAI", AZURE_PATH)
tei = Api("TEI", "/embed")
ollama = Api("Ollama", "/api/embed")
cohere = Api("Cohere")
OPENAI_VECTORS: tuple[ClientRequest, ...] = (
    openai.vectors("openai, float", FLOATS, read.openai_vectors),
    openai.vectors("openai, base64 (default of the SDK)", BASE64, read.openai_base64),
    openai.vectors("openai, one string", INPUTS | {"input": "$TEXT"}, read.openai_vectors, num_inputs=1),
    openai.vectors("dspy (encoding_format: null)", INPUTS | {"encoding_format": None}, read.openai_vectors),
    openai.vectors("requests, base URL with a slash", INPUTS, read.openai_vectors, path="//v1/embeddings"),
    openai.vectors("Infinity clients without /v1", INPUTS, read.openai_vectors, path="/embeddings"),
    openai.other("openai, models.list", None, read.has(("data", 0, "id"), ("data", 0, "object")), path="/v1/models"),
    azure_openai.vectors(
        "AzureOpenAI", {"input": "$TEXTS", "encoding_format": "float"}, read.openai_vectors, headers=AZURE_KEY
    ),
)
TEI_VECTORS: tuple[ClientRequest, ...] = (
    tei.vectors(
        "llama-index TextEmbeddingsInference", {"inputs": "$TEXTS", "truncate": True}, read.rows_at(), is_unit=True
    ),
    tei.vectors("chromadb, one text", {"inputs": "$TEXT"}, read.rows_at(), is_unit=True, num_inputs=1),
    tei.vectors("huggingface_hub feature_extraction", {"inputs": "$TEXTS"}, read.rows_at(), path="/"),
    tei.vectors(
        "haystack HuggingFaceAPI (normalize: false)",
        {"inputs": "$TEXTS", "normalize": False, "truncate": True},
        read.rows_at(),
        path="/",
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
)
OLLAMA_VECTORS: tuple[ClientRequest, ...] = (
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
)
COHERE_VECTORS: tuple[ClientRequest, ...] = (
    *(
        cohere.vectors(
            f"cohere v2, {name}",
            DOCUMENTS | {"embedding_types": [name]},
            read.cohere_type(name),
            path="/v2/embed",
            comparison="nearest",
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
)
