"""Groups of the OpenAPI document: a tag for each dialect, aliases of paths, and an example for each route of a path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cenote.api.replies import JSON_MEDIA_TYPE
from cenote.api.route_table import DialectRoute, RouteTable

# titles by the name of the dialect, in the order in which pages show them
TITLES = {
    "openai": "OpenAI",
    "vllm": "vLLM",
    "rerank": "Rerank: vLLM, Jina, Cohere",
    "cohere": "Cohere",
    "sparse": "Sparse embeddings",
    "entities": "Entities",
    "tokens": "Tokens",
    "tei": "Text Embeddings Inference",
    "ollama": "Ollama",
    "azure": "Azure OpenAI",
    "gemini": "Gemini and Vertex AI",
    "voyage": "Voyage",
    "jina": "Jina",
    "cohere-v1": "Cohere, version 1",
    "nim": "NVIDIA NIM",
    "mixedbread": "Mixedbread",
    "deepinfra": "DeepInfra",
    "infinity": "Infinity",
    "xinference": "Xinference",
    "llama.cpp": "llama.cpp",
    "weaviate": "Weaviate",
    "moderations": "OpenAI moderations",
    "sagemaker": "SageMaker",
    "adapters": "LoRA adapters",
}
SERVER, ADMIN = "Server", "Administration"


def add_groups(
    document: dict[str, Any], table: RouteTable, supported: Mapping[str, Sequence[DialectRoute]]
) -> dict[str, Any]:
    """Tag every operation; mark those that are another path of the same routes with `x-alias-of`."""
    plain = {document_path(path): (route, dialect) for route, dialect in table.plain_routes for path in route.paths}
    for path, operations in document["paths"].items():
        entries = supported.get(path, ())
        for method, operation in operations.items():
            if method == "post" and entries:
                operation["tags"] = list(dict.fromkeys(get_title(entry.dialect.name) for entry in reversed(entries)))
                _add_examples(operation, entries)
                alias_of = find_alias(path, supported)
            else:
                route, dialect = plain[path]
                own = ADMIN if route.access == "admin" else SERVER
                operation["tags"] = [own if dialect is None else get_title(dialect.name)]
                first = document_path(route.paths[0])
                alias_of = None if path == first else first
            if alias_of is not None:
                operation["x-alias-of"] = alias_of
    used = {tag for operations in document["paths"].values() for entry in operations.values() for tag in entry["tags"]}
    titles = [*TITLES.values(), *(get_title(dialect.name) for dialect in table.dialects), SERVER, ADMIN]
    document["tags"] = [{"name": title} for title in dict.fromkeys(titles) if title in used]
    return document


def document_path(path: str) -> str:
    """Return a path of Starlette as OpenAPI writes it."""
    return path.replace(":path}", "}")


def get_title(name: str) -> str:
    return TITLES.get(name, name)


def find_alias(path: str, supported: Mapping[str, Sequence[DialectRoute]]) -> str | None:
    """Return the first path of the route, if it has exactly the same routes."""
    entries = supported[path]
    first = entries[-1].route.paths[0]
    return first if first != path and supported.get(first) == entries else None


def _add_examples(operation: dict[str, Any], entries: Sequence[DialectRoute]) -> None:
    """Give a path with several routes an example of each, the default first."""
    if len(entries) == 1:
        return
    content = operation["requestBody"]["content"][JSON_MEDIA_TYPE]
    del content["example"]
    content["examples"] = {
        entry.name: {"summary": f"{get_title(entry.dialect.name)}: {entry.route.summary}", "value": entry.route.example}
        for entry in reversed(entries)
    }
