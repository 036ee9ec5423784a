"""Reranking: one body that the clients of vLLM, Jina and both versions of Cohere can write and read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from cenote.api.dialects import cohere_meta
from cenote.api.dialects.cohere_meta import BilledUnits, make_meta
from cenote.api.dialects.dialect import Dialect, Route
from cenote.api.replies import Reply, TokenCounts, json_reply
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import Int64, ScoreInputBody, ScoreInputsBody, ScoringFields, doc
from cenote.errors import BadRequest, InvalidBody
from cenote.protocol.input_types import ContentParts, ScoreInput
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.requests import ScoreRequest
from cenote.protocol.results import ScoreResult
from cenote.protocol.score_inputs import parse_score_input

NonNegativeInt = Annotated[int, Meta(ge=0, le=2**63 - 1)]
DOCUMENTS_PER_SEARCH_UNIT = 100


class RerankBody(ScoringFields, kw_only=True):
    """What else clients send (`max_chunks_per_doc`, `relevant_spans`, `return_len`) is ignored like any other field."""

    query: ScoreInputBody
    documents: ScoreInputsBody
    top_n: Annotated[NonNegativeInt | None, doc("only so many of the best; 0: all of them")] = None
    top_k: Annotated[NonNegativeInt | None, doc("another name of top_n")] = None
    return_documents: Annotated[bool | None, doc("yes, unless it is false")] = None
    rank_fields: Annotated[list[str] | None, doc("the fields that make the text of a document that is an object")] = (
        None
    )
    max_doc_length: Annotated[Int64 | None, doc("Jina's name of max_tokens_per_doc")] = None
    truncate: Annotated[
        bool | Literal["END", "START", "NONE"] | None,
        doc("cut to what the model reads, at the end or the start; unset it depends on the route"),
    ] = None


class RerankUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class RerankResult(msgspec.Struct, omit_defaults=True):
    index: int
    relevance_score: float
    document: dict[str, Any] | str | UnsetType = UNSET
    token_counts: TokenCounts | None = None


class Reranked(msgspec.Struct):
    """Best first; equals stay in their order."""

    id: str
    model: str
    results: list[RerankResult]
    usage: RerankUsage
    meta: cohere_meta.Meta


async def rerank(body: RerankBody, context: RequestContext) -> Reply:
    """A pair that is too long is an error, as the reference has it."""
    return await _rerank(body, context, version="1", truncate_by_default=False)


async def rerank_v2(body: RerankBody, context: RequestContext) -> Reply:
    """Cohere's own route: its clients know no lengths and count on documents being cut; the reply's head tells it."""
    return await _rerank(body, context, version="2", truncate_by_default=True)


async def _rerank(body: RerankBody, context: RequestContext, *, version: str, truncate_by_default: bool) -> Reply:
    context.check_model(body.model)
    documents = body.documents if isinstance(body.documents, list) else [body.documents]
    if not documents:
        raise BadRequest("documents is empty; give at least one document to rank", param="documents")
    context.check_num_items(len(documents), "documents")
    sides = [
        make_document_input(each, body.rank_fields, place, context.model_info) for place, each in enumerate(documents)
    ]
    scores = await context.score(make_score_request(body, context, sides, truncate_by_default=truncate_by_default))
    units = BilledUnits(search_units=-(-len(documents) // DOCUMENTS_PER_SEARCH_UNIT))
    return json_reply(
        Reranked(
            context.make_response_id("score"),
            context.model,
            [
                make_result(body, context, index, scores[index], documents[index], sides[index])
                for index in rank_indices(scores, body)
            ],
            RerankUsage(context.num_tokens, context.num_tokens),
            make_meta(context, version, units),
        )
    )


def make_score_request(
    body: RerankBody, context: RequestContext, documents: Sequence[ScoreInput], *, truncate_by_default: bool
) -> ScoreRequest:
    request = body.to_score_request([parse_score_input(body.query, "query", context.model_info)], documents)
    limit = resolve_doc_limit(body.max_tokens_per_doc, body.max_doc_length)
    wanted = truncate_by_default if body.truncate is None else body.truncate not in (False, "NONE")
    if body.truncate_prompt_tokens is None and wanted:
        side = "left" if body.truncate == "START" else request.tokenization.truncation_side
        how = replace(request.tokenization, truncate_prompt_tokens=-1, truncation_side=side)
        request = replace(request, tokenization=how)
        limit = (
            0 if limit >= context.model_info.max_model_len else limit
        )  # as Cohere's own 4096, which many models never reach
    return replace(request, max_tokens_per_doc=limit)


def resolve_doc_limit(max_tokens_per_doc: int | None, max_doc_length: int | None) -> int:
    if max_tokens_per_doc is not None and max_doc_length is not None and max_tokens_per_doc != max_doc_length:
        raise BadRequest(
            f"max_doc_length is another name of max_tokens_per_doc: got {max_doc_length} and {max_tokens_per_doc}; "
            f"give one",
            param="max_doc_length",
        )
    return max_tokens_per_doc or max_doc_length or 0


def rank_indices(results: Sequence[ScoreResult], body: RerankBody) -> list[int]:
    ranked = sorted(range(len(results)), key=lambda index: -results[index].score)
    return ranked[: body.top_n or body.top_k or len(ranked)]


def make_result(
    body: RerankBody,
    context: RequestContext,
    index: int,
    score_result: ScoreResult,
    document: ScoreInputBody,
    score_input: ScoreInput,
) -> RerankResult:
    counts = context.make_token_counts(score_result, body.return_token_counts)
    shown: dict[str, Any] | str | UnsetType = UNSET
    if body.return_documents is not False:
        bare = context.settings.rerank_document_shape == "string"
        shown = make_document_string(score_input) if bare else make_document_object(document, score_input)
    return RerankResult(index, score_result.score, shown, counts)


def make_document_input(
    document: ScoreInputBody, rank_fields: Sequence[str] | None, index: int, model_info: ModelInfo
) -> ScoreInput:
    """What the model reads of a document. Several fields become lines that say which is which."""
    if isinstance(document, str) or not rank_fields:
        return parse_score_input(document, f"documents.{index}", model_info)
    found = {name: to_text(document[name]) for name in rank_fields if document.get(name) is not None}
    if not found:
        raise InvalidBody(
            f"documents.{index}: has none of the rank_fields {', '.join(rank_fields)}; it has {', '.join(document)}",
            param=f"body.documents.{index}",
        )
    return "\n".join(f"{name}: {text}" for name, text in found.items()) if len(rank_fields) > 1 else found.popitem()[1]


def to_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def make_document_object(document: ScoreInputBody, score_input: ScoreInput) -> dict[str, Any]:
    """With `text` for everybody, and whatever else the client put into its document; parts go by their own name."""
    if isinstance(document, str):
        return {"text": document, "multi_modal": None}
    parts = content if isinstance(content := document.get("content"), list) else None
    kept = {name: value for name, value in document.items() if name != "content" or parts is None}
    if isinstance(score_input, ContentParts):
        return {**kept, "text": None, "multi_modal": score_input.content}
    given = kept.get("text")
    return {**kept, "text": given if isinstance(given, str) else score_input, "multi_modal": parts}


def make_document_string(score_input: ScoreInput) -> str:
    """Of a document with images, the texts beside them."""
    if isinstance(score_input, str):
        return score_input
    texts = [part if isinstance(part, str) else part.get("text") for part in score_input.content]
    return "\n".join(text for text in texts if isinstance(text, str))


def _make_route(paths: Sequence[str], handler: Any, summary: str) -> Route:
    return Route(
        paths=paths,
        body_type=RerankBody,
        handler=handler,
        summary=summary,
        reply_type=Reranked,
        api_name="Rerank (Score)",
        is_supported=lambda about: bool(about.score_types),
        example={
            "query": "What is the capital of France?",
            "documents": ["The capital of Brazil is Brasilia.", "The capital of France is Paris."],
            "top_n": 1,
        },
    )


RERANK = Dialect(
    "rerank",
    [
        _make_route(("/rerank", "/v1/rerank"), rerank, "Documents by how well they answer a query, best first"),
        _make_route(("/v2/rerank",), rerank_v2, "The same; documents that are too long are cut"),
    ],
)
