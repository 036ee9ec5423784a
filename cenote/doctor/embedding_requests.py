"""Embedding requests of the clients of OpenAI, Text Embeddings Inference, Ollama and Cohere."""

from __future__ import annotations

from cenote.doctor import answers as read
from cenote.doctor.client_request import AZURE_KEY, INPUTS, NO_TYPE, ClientRequest, other, vectors

AZURE_PATH = "/openai/deployments/{model}/embeddings?api-version=2024-10-21"
NULLS = {"options": {"mirostat": None, "num_ctx": None, "temperature": None, "stop": None}, "keep_alive": None}
DOCUMENTS = {"model": "$MODEL", "texts": "$TEXTS", "input_type": "search_document"}
FLOATS, BASE64 = INPUTS | {"encoding_format": "float"}, INPUTS | {"encoding_format": "base64"}
OPENAI_VECTORS: tuple[ClientRequest, ...] = (
    vectors("OpenAI", "openai, float", "/v1/embeddings", FLOATS, read.openai_vectors),
    vectors("OpenAI", "openai, base64 (default of the SDK)", "/v1/embeddings", BASE64, read.openai_base64),
    vectors(
        "OpenAI", "openai, one string", "/v1/embeddings", INPUTS | {"input": "$TEXT"}, read.openai_vectors, num_inputs=1
    ),
    vectors(
        "OpenAI",
        "dspy (encoding_format: null)",
        "/v1/embeddings",
        INPUTS | {"encoding_format": None},
        read.openai_vectors,
    ),
    vectors("OpenAI", "requests, base URL with a slash", "//v1/embeddings", INPUTS, read.openai_vectors),
    vectors("OpenAI", "Infinity clients without /v1", "/embeddings", INPUTS, read.openai_vectors),
    other("OpenAI", "openai, models.list", "/v1/models", None, read.has(("data", 0, "id"), ("data", 0, "object"))),
    vectors(
        "Azure OpenAI",
        "AzureOpenAI",
        AZURE_PATH,
        {"input": "$TEXTS", "encoding_format": "float"},
        read.openai_vectors,
        headers=AZURE_KEY,
    ),
)
TEI_VECTORS: tuple[ClientRequest, ...] = (
    vectors(
        "TEI",
        "llama-index TextEmbeddingsInference",
        "/embed",
        {"inputs": "$TEXTS", "truncate": True},
        read.rows_at(),
        is_unit=True,
    ),
    vectors("TEI", "chromadb, one text", "/embed", {"inputs": "$TEXT"}, read.rows_at(), is_unit=True, num_inputs=1),
    vectors("TEI", "huggingface_hub feature_extraction", "/", {"inputs": "$TEXTS"}, read.rows_at()),
    vectors(
        "TEI",
        "haystack HuggingFaceAPI (normalize: false)",
        "/",
        {"inputs": "$TEXTS", "normalize": False, "truncate": True},
        read.rows_at(),
        comparison="direction",
    ),
    vectors(
        "TEI",
        "chromadb HuggingFaceEmbeddingFunction",
        "/pipeline/feature-extraction/{model}",
        {"inputs": "$TEXTS", "options": {"wait_for_model": True}},
        read.rows_at(),
    ),
    other(
        "TEI",
        "huggingface_hub sentence_similarity",
        "/similarity",
        {"inputs": {"source_sentence": "$QUERY", "sentences": "$DOCUMENTS"}},
        read.scores_at(()),
    ),
    other("TEI", "haystack TEISparse", "/embed_sparse", {"inputs": "$TEXTS"}, read.sparse_rows),
    other("TEI", "requests, /tokenize", "/tokenize", {"inputs": "$TEXT"}, read.has((0, 0, "id"), (0, 0, "special"))),
    other("TEI", "info", "/info", None, read.has(("model_id",), ("max_input_length",))),
)
OLLAMA_VECTORS: tuple[ClientRequest, ...] = (
    vectors("Ollama", "ollama", "/api/embed", INPUTS, read.rows_at("embeddings"), is_unit=True),
    vectors(
        "Ollama",
        "langchain-ollama (options of nulls)",
        "/api/embed",
        INPUTS | {"truncate": None} | NULLS,
        read.rows_at("embeddings"),
        is_unit=True,
        headers=NO_TYPE,
    ),
    vectors(
        "Ollama",
        "llama-index Ollama",
        "/api/embeddings",
        {"model": "$MODEL", "prompt": "$TEXT", "options": {}},
        read.row_at("embedding"),
        comparison="direction",
        num_inputs=1,
    ),
    other("Ollama", "ollama list", "/api/tags", None, read.has(("models", 0, "name"), ("models", 0, "details"))),
    other("Ollama", "ollama show", "/api/show", {"model": "$MODEL"}, read.has(("details",), ("model_info",))),
)
COHERE_VECTORS: tuple[ClientRequest, ...] = (
    *(
        vectors(
            "Cohere",
            f"cohere v2, {name}",
            "/v2/embed",
            DOCUMENTS | {"embedding_types": [name]},
            read.cohere_type(name),
            comparison="nearest",
        )
        for name in ("float", "int8", "uint8", "binary", "ubinary", "base64")
    ),
    vectors(
        "Cohere",
        "cohere v1",
        "/v1/embed",
        DOCUMENTS | {"truncate": "END"},
        read.rows_at("embeddings"),
        comparison="nearest",
    ),
    other(
        "Cohere",
        "cohere v1, tokenize",
        "/v1/tokenize",
        {"text": "$TEXT", "model": "$MODEL"},
        read.has(("tokens", 0), ("token_strings", 0)),
    ),
)
