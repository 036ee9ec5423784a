"""Ollama API: embeddings of texts, and the routes with which its clients find models."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request

from cenote.api.app_state import AppState
from cenote.api.dialects.dialect import EMBEDDINGS, Dialect, Route
from cenote.api.dialects.text_requests import embed_rows, make_embed_request, make_truncation
from cenote.api.encoding import encode_json
from cenote.api.plain_route import PlainRoute, Routes
from cenote.api.replies import Reply, encode_string_error
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import doc
from cenote.api.served_models import ServedModel
from cenote.api.system_routes import Version
from cenote.api.vector_response import encode_results
from cenote.errors import BadRequest
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.params import TokenizationParams
from cenote.version import __version__

routes, plain_routes = Routes(Route), Routes(PlainRoute)

# 0: the size of the model
Size = Annotated[int, Meta(ge=0, le=2**31 - 1)]
NDJSON_MEDIA_TYPE = "application/x-ndjson"
KEEP_ALIVE_DOC = doc("Accepted for compatibility, ignored: keep_alive_s in the table of models decides.")
OPTIONS_DOC = doc("Only num_ctx has an effect: texts are truncated to so many tokens.")


class OllamaBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    options: Annotated[dict[str, Any] | None, OPTIONS_DOC] = None
    keep_alive: Annotated[str | float | None, KEEP_ALIVE_DOC] = None

    def make_tokenization(self, context: RequestContext, *, truncates: bool) -> TokenizationParams:
        limit = (self.options or {}).get("num_ctx")
        if limit is None:
            return make_truncation(truncates, context)
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise BadRequest(f"options.num_ctx must be an integer of at least 1, got {limit!r}", param="options")
        return make_truncation(truncates, context, limit=min(limit, context.model_info.max_model_len))


class OllamaEmbedBody(OllamaBody, kw_only=True):
    input: str | list[str] | None = None
    truncate: Annotated[bool | None, doc("Truncate texts to the model maximum. Default: true.")] = None
    dimensions: Annotated[Size | None, doc("Embedding size, for Matryoshka models; 0 for the whole.")] = None


class OllamaEmbeddingsBody(OllamaBody, kw_only=True):
    prompt: str | None = None


class OllamaEmbedded(msgspec.Struct):
    model: str
    embeddings: list[list[float]]
    total_duration: int  # nanoseconds
    load_duration: int
    prompt_eval_count: int  # tokens


class OllamaEmbedding(msgspec.Struct):
    embedding: list[float]


class ShowBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    name: Annotated[str | None, doc("Former name of model.")] = None
    verbose: Annotated[bool | None, doc("Accepted for compatibility, ignored.")] = None


class PullBody(ShowBody, kw_only=True):
    stream: Annotated[bool | None, doc("false: one JSON object instead of lines.")] = None
    insecure: Annotated[bool | None, doc("Accepted for compatibility, ignored.")] = None


class ModelDetails(msgspec.Struct):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class Shown(msgspec.Struct):
    modified_at: str
    details: ModelDetails
    model_info: dict[str, str | int]
    capabilities: list[str]


class Pulled(msgspec.Struct):
    status: str


class OllamaModel(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: ModelDetails
    expires_at: str | None = None  # /api/ps only
    size_vram: int | None = None


class OllamaModels(msgspec.Struct):
    models: list[OllamaModel]


class OllamaError(msgspec.Struct):
    error: str


def read_model_name(body: ShowBody) -> str | None:
    return body.model or body.name


@routes.add(
    "/api/embed",
    read_model_name=None,  # the handler measures the time of the selection
    needs=EMBEDDINGS,
    example={"input": ["Hello, my name is", "The capital of France is"]},
)
async def embed(body: OllamaEmbedBody, context: RequestContext) -> OllamaEmbedded:
    """Compute one embedding for every text, in Ollama's format."""
    started_at = time.monotonic()
    await context.select_model(body.model)
    loaded_at = time.monotonic()
    texts = [body.input] if isinstance(body.input, str) else body.input or []
    rows: Any = []
    if texts != [""] and texts:  # without a text, the request only loads the model
        tokenization = body.make_tokenization(context, truncates=body.truncate is not False)
        request = make_embed_request(texts, tokenization, dimensions=body.dimensions or None, normalize=True)
        rows = await encode_results(await context.pool(request))
    return OllamaEmbedded(
        body.model or context.model,
        rows,
        to_nanoseconds(time.monotonic() - started_at),
        to_nanoseconds(loaded_at - started_at),
        context.num_tokens,
    )


@routes.add("/api/embeddings", reply_type=OllamaEmbedding, needs=EMBEDDINGS, example={"prompt": "Hello, my name is"})
async def embeddings(body: OllamaEmbeddingsBody, context: RequestContext) -> dict[str, Any]:
    """Compute the embedding of one text, not normalised, in Ollama's former format."""
    if not body.prompt:
        return {"embedding": []}
    tokenization = body.make_tokenization(context, truncates=True)
    rows = await embed_rows(context, make_embed_request([body.prompt], tokenization, normalize=False))
    return {"embedding": encode_json(rows[0])}


@routes.add("/api/show", read_model_name=read_model_name, example={"verbose": False})
async def show(body: ShowBody, context: RequestContext) -> Shown:
    """Return facts about a model, in Ollama's format."""
    model_info = context.model_info
    facts: dict[str, str | int] = {
        "general.architecture": model_info.architecture,
        "general.basename": model_info.root,
        f"{model_info.architecture}.context_length": model_info.max_model_len,
    }
    if model_info.embedding_size is not None:
        facts[f"{model_info.architecture}.embedding_length"] = model_info.embedding_size
    return Shown(format_time(context.created), make_details(model_info), facts, list_capabilities(model_info))


@routes.add(
    "/api/pull", read_model_name=read_model_name, stream_media_type=NDJSON_MEDIA_TYPE, example={"stream": False}
)
async def pull(body: PullBody, context: RequestContext) -> Pulled | Reply:
    """Return success for a served model, in Ollama's format; nothing is downloaded."""
    pulled = Pulled("success")
    return pulled if body.stream is False else Reply(msgspec.json.encode(pulled) + b"\n", media_type=NDJSON_MEDIA_TYPE)


def list_capabilities(model_info: ModelInfo) -> list[str]:
    names = {"embed": "embedding", "classify": "classification"}
    found = [names[task] for task in model_info.tasks if task in names]
    return [*found, *(["vision"] if model_info.supports_images else [])]


def make_details(model_info: ModelInfo | None) -> ModelDetails:
    """Return what is known of a model; before it has been loaded, nothing is."""
    if model_info is None:
        return ModelDetails("", "safetensors", "", [], "", "")
    family = model_info.architecture
    return ModelDetails("", "safetensors", family, [family], "", model_info.dtype)


def make_row(name: str, model: ServedModel, created: int, *, is_running: bool = False) -> OllamaModel:
    model_info = model.model_info
    return OllamaModel(
        name=name,
        model=name,
        modified_at=format_time(created),
        size=0,
        digest="" if model_info is None else model_info.fingerprint,
        details=make_details(model_info),
        expires_at=format_time(created + 10 * 365 * 86_400) if is_running else None,
        size_vram=0 if is_running else None,
    )


def format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def to_nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


@plain_routes.add("/api/tags")
async def list_models(http: Request, app_state: AppState) -> OllamaModels:
    """List the served models, in Ollama's format."""
    rows = [make_row(name, model, app_state.created) for model in app_state.models for name in model.names]
    return OllamaModels(rows)


@plain_routes.add("/api/ps")
async def list_running_models(http: Request, app_state: AppState) -> OllamaModels:
    """List the loaded models, in Ollama's format."""
    rows = [
        make_row(model.name, model, app_state.created, is_running=True)
        for model in app_state.models
        if model.status == "ready"
    ]
    return OllamaModels(rows)


@plain_routes.add("/api/version")
async def version(http: Request, app_state: AppState) -> Version:
    """Return the version of the server."""
    return Version(__version__)


OLLAMA = Dialect(
    "ollama",
    routes,
    plain_routes=plain_routes,
    generation_paths=("/api/chat", "/api/generate"),
    encode_error=encode_string_error,
    error_type=OllamaError,
    truncation="Leave out truncate=false",
)
