"""NVIDIA NIM API: ranking of passages. Its embeddings are those of the OpenAI route."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from starlette.requests import Request

from cenote.api.app_state import AppState
from cenote.api.dialects.dialect import SCORES, Dialect, Route
from cenote.api.dialects.rerank import NonNegativeInt
from cenote.api.dialects.text_requests import check_not_empty, parse_truncation, rank
from cenote.api.plain_route import PlainRoute
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import doc
from cenote.version import __version__


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


async def ranking(body: RankingBody, context: RequestContext) -> Rankings:
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


async def report_ready(http: Request, app_state: AppState) -> NimHealth:
    app_state.check_ready()
    return NimHealth("health.response", "ready", True)


async def report_live(http: Request, app_state: AppState) -> NimHealth:
    if (error := app_state.find_final_error()) is not None:
        raise error
    return NimHealth("health.response", "live", True)


async def list_metadata(http: Request, app_state: AppState) -> NimMetadata:
    models = [
        NimModel(model.name, "" if model.model_info is None else model.model_info.fingerprint)
        for model in app_state.models
    ]
    return NimMetadata(__version__, models)


NIM = Dialect(
    "nim",
    [
        Route(
            paths=("/v1/ranking", "/v1/retrieval/{model}/reranking"),
            body_type=RankingBody,
            handler=ranking,
            summary="Rank passages by relevance to a query, with logits, in NVIDIA NIM's format",
            reply_type=Rankings,
            needs=SCORES,
            example={
                "query": {"text": "What is the capital of France?"},
                "passages": [
                    {"text": "The capital of Brazil is Brasilia."},
                    {"text": "The capital of France is Paris."},
                ],
            },
        )
    ],
    plain_routes=[
        PlainRoute(
            ("/v1/health/ready",), report_ready, "Readiness, in NVIDIA NIM's format", NimHealth, access="public"
        ),
        PlainRoute(("/v1/health/live",), report_live, "Liveness, in NVIDIA NIM's format", NimHealth, access="public"),
        PlainRoute(
            ("/v1/metadata",), list_metadata, "Return the version and the models, in NVIDIA NIM's format", NimMetadata
        ),
    ],
    truncation="Set truncate=END",
)
