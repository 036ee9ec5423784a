"""Embedding requests of the clients of other vendors and servers."""

from __future__ import annotations

from typing import Any

from cenote.doctor import answers as read
from cenote.doctor.client_request import GOOGLE_KEY, INPUTS, NO_TYPE, ClientRequest, Each, other, vectors

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
VENDOR_VECTORS: tuple[ClientRequest, ...] = (
    vectors("Voyage", "voyageai, float", "/v1/embeddings", VOYAGE | {"output_dtype": "float"}, read.openai_base64),
    vectors(
        "Voyage",
        "voyageai, int8",
        "/v1/embeddings",
        VOYAGE | {"output_dtype": "int8"},
        read.openai_base64_int8,
        comparison="int8",
    ),
    vectors(
        "Voyage",
        "voyageai, ubinary",
        "/v1/embeddings",
        VOYAGE | {"output_dtype": "ubinary"},
        read.openai_base64_ubinary,
        comparison="bits",
    ),
    vectors(
        "Voyage",
        "LiteLLM voyage/ (no Content-Type)",
        "/v1/embeddings",
        INPUTS,
        read.openai_float_vectors,
        headers=NO_TYPE,
    ),
    vectors(
        "Jina",
        "Jina, objects with text",
        "/v1/embeddings",
        INPUTS | {"input": Each("texts", {"text": "$ITEM"}), "normalized": True},
        read.openai_float_vectors,
        is_unit=True,
    ),
    vectors(
        "Jina",
        "LightRAG (task: text-matching)",
        "/v1/embeddings",
        INPUTS | {"task": "text-matching"},
        read.openai_float_vectors,
        comparison="nearest",
    ),
    vectors(
        "Jina",
        "chromadb Jina, ubinary",
        "/v1/embeddings",
        INPUTS | {"embedding_type": "ubinary"},
        read.openai_ubinary,
        comparison="bits",
    ),
    vectors(
        "Jina",
        "llama-index Jina, binary",
        "/v1/embeddings",
        INPUTS | {"encoding_type": "binary"},
        read.openai_binary,
        comparison="bits",
    ),
    vectors(
        "NVIDIA NIM",
        "langchain-nvidia NVIDIAEmbeddings",
        "/v1/embeddings",
        NIM,
        read.openai_vectors,
        comparison="nearest",
    ),
    vectors("Gemini", "google-genai", f"/v1beta{GEMINI_PATH}", GEMINI_REQUESTS, gemini_values, **GEMINI),
    vectors(
        "Gemini",
        "langchain-google-genai (taskType: 2)",
        f"/v1beta{GEMINI_PATH}{GEMINI_ENUMS}",
        GEMINI_TASKS,
        gemini_values,
        **GEMINI,
    ),
    vectors("Gemini", "LiteLLM gemini/ (no version)", GEMINI_PATH, GEMINI_REQUESTS, gemini_values, **GEMINI),
    vectors(
        "Vertex AI",
        "google-genai (Vertex)",
        VERTEX_PATH,
        {"instances": Each("texts", {"content": "$ITEM"}), "parameters": {"autoTruncate": True}},
        read.each_at(["predictions"], ["embeddings", "values"]),
        comparison="nearest",
        headers=GOOGLE_KEY,
    ),
    vectors(
        "Weaviate", "text2vec-transformers", "/vectors", WEAVIATE, read.row_at("vector"), headers=NO_TYPE, num_inputs=1
    ),
    vectors(
        "llama.cpp",
        "langchain Llamafile",
        "/embedding",
        {"content": "$TEXT"},
        read.row_at("embedding"),
        comparison="direction",
        num_inputs=1,
    ),
    vectors(
        "DeepInfra",
        "DeepInfra",
        "/v1/inference/{model}",
        {"inputs": "$TEXTS"},
        read.rows_at("embeddings"),
        comparison="direction",
    ),
    vectors("TextEmbed", "langchain TextEmbed", "/v1/embedding", INPUTS, read.openai_float_vectors),
    vectors(
        "vLLM",
        "mteb (messages of one text)",
        "/v1/embeddings",
        {"model": "$MODEL", "messages": MESSAGES},
        read.openai_vectors,
        comparison="nearest",
    ),
    vectors("vLLM", "requests, /pooling", "/pooling", INPUTS | {"task": "embed"}, read.each_at(["data"], ["data"])),
    other("vLLM", "tokenize", "/tokenize", {"model": "$MODEL", "prompt": "$TEXT"}, read.has(("tokens", 0), ("count",))),
)
