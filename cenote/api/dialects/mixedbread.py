"""Mixedbread rerank API."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from cenote.api.dialects.dialect import SCORES, Dialect, Route, has_keys
from cenote.api.dialects.rerank import NonNegativeInt, RankFields, RerankUsage, make_document_input
from cenote.api.dialects.text_requests import check_not_empty, make_truncation, rank_best_first
from cenote.api.plain_route import Routes
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import doc
from cenote.protocol.requests import ScoreRequest

routes = Routes(Route)


class RerankingBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    query: str
    input: Annotated[list[str | dict[str, Any]], doc("Documents: texts, or objects with the fields in rank_fields.")]
    rank_fields: Annotated[RankFields | None, doc("Fields of object documents that form their text.")] = None
    top_k: Annotated[NonNegativeInt | None, doc("Return only the best documents; 0 for all.")] = None
    return_input: Annotated[bool | None, doc("Return the documents. Default: false.")] = None
    instruction: Annotated[str | None, doc("Instruction for instruction-aware rerankers.")] = None


class RankedInput(msgspec.Struct):
    index: int
    score: float
    input: str | dict[str, Any] | UnsetType = UNSET
    object: str = msgspec.field(default_factory=lambda: "rank_result")


class Reranking(msgspec.Struct):
    """Documents, best first; those that are too long are truncated."""

    model: str
    data: list[RankedInput]
    usage: RerankUsage
    object: str
    top_k: int
    return_input: bool


@routes.add(
    "/v1/reranking",
    body_keys=has_keys("input"),
    needs=SCORES,
    example={
        "query": "What is the capital of France?",
        "input": ["The capital of Brazil is Brasilia.", "The capital of France is Paris."],
        "return_input": True,
    },
)
async def reranking(body: RerankingBody, context: RequestContext) -> Reranking:
    """Rank documents by relevance to a query, in Mixedbread's format."""
    check_not_empty(body.input, "input")
    context.check_num_items(len(body.input), "input")
    if body.return_input:
        await context.hold_echo()
    request = ScoreRequest(
        queries=[body.query],
        documents=[
            make_document_input(document, body.rank_fields, index, context.model_info)
            for index, document in enumerate(body.input)
        ],
        tokenization=make_truncation(True, context),
        instruction=body.instruction,
    )
    scores = [result.score for result in await context.score(request)]
    data = [
        RankedInput(index, scores[index], body.input[index] if body.return_input else UNSET)
        for index in rank_best_first(scores, body.top_k)
    ]
    usage = RerankUsage(context.num_tokens, context.num_tokens)
    return Reranking(context.model, data, usage, "list", len(data), bool(body.return_input))


MIXEDBREAD = Dialect("mixedbread", routes)
