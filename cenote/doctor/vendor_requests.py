"""Embedding requests of the clients of other vendors and servers."""

from __future__ import annotations

from typing import Any

from cenote.doctor import answers as read
from cenote.doctor.client_request import GOOGLE_KEY, INPUTS, NO_TYPE, Api, ClientRequest, Each

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
voyage = Api("Voyage", "/v1/embeddings")
jina = Api("Jina", "/v1/embeddings")
nvidia_nim = Api("NVIDIA NIM", "/v1/embeddings")
gemini = Api("Gemini")
vertex_ai = Api("Vertex AI", VERTEX_PATH)
weaviate = Api("Weaviate", "/vectors")
llama_cpp = Api("llama.cpp", "/embedding")
deepinfra = Api("DeepInfra", "/v1/inference/{model}")
textembed = Api("TextEmbed", "/v1/embedding")
vllm = Api("vLLM")
VENDOR_VECTORS: tuple[ClientRequest, ...] = (
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
    nvidia_nim.vectors("langchain-nvidia NVIDIAEmbeddings", NIM, read.openai_vectors, comparison="nearest"),
    gemini.vectors("google-genai", GEMINI_REQUESTS, gemini_values, path=f"/v1beta{GEMINI_PATH}", **GEMINI),
    gemini.vectors(
        "langchain-google-genai (taskType: 2)",
        GEMINI_TASKS,
        gemini_values,
        path=f"/v1beta{GEMINI_PATH}{GEMINI_ENUMS}",
        **GEMINI,
    ),
    gemini.vectors("LiteLLM gemini/ (no version)", GEMINI_REQUESTS, gemini_values, path=GEMINI_PATH, **GEMINI),
    vertex_ai.vectors(
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
        path="/v1/embeddings",
        comparison="nearest",
    ),
    vllm.vectors("requests, /pooling", INPUTS | {"task": "embed"}, read.each_at(["data"], ["data"]), path="/pooling"),
    vllm.other(
        "tokenize", {"model": "$MODEL", "prompt": "$TEXT"}, read.has(("tokens", 0), ("count",)), path="/tokenize"
    ),
)
