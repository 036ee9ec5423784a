"""Weaviate's inference containers: vectors of texts and reranking, for its transformers modules."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request

from cenote.api.app_state import AppState
from cenote.api.dialects.dialect import EMBEDDINGS, SCORES, Dialect, Route, has_keys
from cenote.api.dialects.text_requests import make_embed_request, make_truncation, score
from cenote.api.plain_route import PlainRoute, Routes
from cenote.api.replies import Reply, encode_string_error
from cenote.api.request_context import RequestContext
from cenote.api.vector_response import encode_results
from cenote.errors import InvalidBody

routes, plain_routes = Routes(Route), Routes(PlainRoute)


class WeaviateError(msgspec.Struct):
    error: str


class VectorConfig(msgspec.Struct):
    task_type: str | None = None
    dimensions: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    pooling_strategy: str | None = None  # the model decides it


class VectorsBody(msgspec.Struct):
    text: str | None = None
    texts: list[str] | None = None
    config: VectorConfig | None = None


class Vectors(msgspec.Struct):
    dims: int
    text: str | UnsetType = UNSET
    vector: list[float] | UnsetType = UNSET
    vectors: list[list[float]] | UnsetType = UNSET


class WeaviateRerankBody(msgspec.Struct):
    query: str
    documents: list[str]
    property: str = ""


class DocumentScore(msgspec.Struct):
    document: str
    score: float


class DocumentScores(msgspec.Struct):
    query: str
    scores: list[DocumentScore]


class ContainerMeta(msgspec.Struct):
    model: str
    architecture: str
    max_input_length: int


@routes.add("/vectors", needs=EMBEDDINGS, example={"text": "Hello, my name is"})
async def vectors(body: VectorsBody, context: RequestContext) -> Vectors:
    """Compute the vector of a text, or of several, for Weaviate's text2vec-transformers."""
    texts = body.texts if body.texts is not None else [body.text] if body.text is not None else None
    if not texts:
        raise InvalidBody("text or texts is required", param="body.text", kind="missing")
    config = body.config or VectorConfig()
    truncation, dimensions = make_truncation(True, context), config.dimensions or None
    request = make_embed_request(texts, truncation, dimensions=dimensions, input_type=config.task_type or None)
    results = await context.pool(request)
    first = results[0].data
    if body.texts is None:
        return Vectors(first.size, texts[0], first.tolist())
    return Vectors(first.size, vectors=await encode_results(results))  # type: ignore[arg-type]


@routes.add(
    "/rerank",
    needs=SCORES,
    body_keys=has_keys("documents", property="string"),
    example={"query": "a bird", "documents": ["a red bird"], "property": ""},
)
async def rerank(body: WeaviateRerankBody, context: RequestContext) -> DocumentScores:
    """Score documents for Weaviate's reranker-transformers.

    The scores are in the order of the documents.
    """
    if not body.documents:
        raise InvalidBody("documents is empty; expected at least one document", param="body.documents")
    await context.hold_echo()
    scores = await score(context, [body.query], body.documents, make_truncation(True, context))
    return DocumentScores(body.query, list(map(DocumentScore, body.documents, scores)))


@plain_routes.add(("/.well-known/ready", "/.well-known/live"), media_type="text/plain", access="public")
async def ready(http: Request, app_state: AppState) -> Reply:
    """Return 200 when the server is ready, 503 otherwise."""
    app_state.check_ready()
    return Reply(b"", media_type="text/plain")


@plain_routes.add("/meta")
async def meta(http: Request, app_state: AppState) -> ContainerMeta:
    """Return the model."""
    model_info = app_state.engine.model_info
    return ContainerMeta(model_info.name, model_info.architecture, model_info.max_model_len)


WEAVIATE = Dialect(
    "weaviate",
    routes,
    plain_routes,
    encode_string_error,
    WeaviateError,
)
