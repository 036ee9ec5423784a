"""NVIDIA NIM API: ranking of passages. Its embeddings are those of the OpenAI route."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from starlette.requests import Request

from cenote.api.app_state import AppState
from cenote.api.dialects.dialect import SCORES, Dialect, Route
from cenote.api.dialects.rerank import NonNegativeInt
from cenote.api.dialects.text_requests import check_not_empty, parse_truncation, rank
from cenote.api.plain_route import PlainRoute, Routes
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import doc
from cenote.version import __version__

routes, plain_routes = Routes(Route), Routes(PlainRoute)


class TextObject(msgspec.Struct):
    text: str


class RankingBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    query: TextObject
    passages: list[TextObject]
    top_k: Annotated[NonNegativeInt | None, doc("Return only the best passages; 0 for all.")] = None
    truncate: Annotated[
        Literal["NONE", "START", "END"] | None,
        doc("Side at which too long pairs are truncated. Default: NONE, which makes them an error."),
    ] = None


class Ranking(msgspec.Struct):
    index: int
    logit: float  # similarity, for models that are no cross-encoders


class RankingUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class Rankings(msgspec.Struct):
    """Passages, best first."""

    rankings: list[Ranking]
    usage: RankingUsage


@routes.add(
    ("/v1/ranking", "/v1/retrieval/{model}/reranking"),
    needs=SCORES,
    example={
        "query": {"text": "What is the capital of France?"},
        "passages": [
            {"text": "The capital of Brazil is Brasilia."},
            {"text": "The capital of France is Paris."},
        ],
    },
)
async def ranking(body: RankingBody, context: RequestContext) -> Rankings:
    """Rank passages by relevance to a query, with logits, in NVIDIA NIM's format."""
    check_not_empty(body.passages, "passages")
    ranked = await rank(
        context,
        body.query.text,
        [passage.text for passage in body.passages],
        parse_truncation(body.truncate, context),
        top_k=body.top_k,
        raw_scores=True,
    )
    usage = RankingUsage(context.num_tokens, context.num_tokens)
    return Rankings([Ranking(item.position, item.score) for item in ranked], usage)


class NimHealth(msgspec.Struct):
    object: str
    message: str
    ready: bool


class NimModel(msgspec.Struct):
    id: str
    fingerprint: str


class NimMetadata(msgspec.Struct, rename="camel"):
    version: str
    model_info: list[NimModel]


@plain_routes.add("/v1/health/ready", access="public")
async def report_ready(http: Request, app_state: AppState) -> NimHealth:
    """Readiness, in NVIDIA NIM's format."""
    app_state.check_ready()
    return NimHealth("health.response", "ready", True)


@plain_routes.add("/v1/health/live", access="public")
async def report_live(http: Request, app_state: AppState) -> NimHealth:
    """Liveness, in NVIDIA NIM's format."""
    if (error := app_state.find_final_error()) is not None:
        raise error
    return NimHealth("health.response", "live", True)


@plain_routes.add("/v1/metadata")
async def list_metadata(http: Request, app_state: AppState) -> NimMetadata:
    """Return the version and the models, in NVIDIA NIM's format."""
    models = [
        NimModel(model.name, "" if model.model_info is None else model.model_info.fingerprint)
        for model in app_state.models
    ]
    return NimMetadata(__version__, models)


NIM = Dialect(
    "nim",
    routes,
    plain_routes=plain_routes,
    truncation="Set truncate=END",
)
