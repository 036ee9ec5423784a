"""Rerank API, compatible with clients of vLLM, Jina, Voyage and Cohere (versions 1 and 2)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from cenote.api.dialects import cohere_meta
from cenote.api.dialects.cohere_meta import BilledUnits, make_meta
from cenote.api.dialects.dialect import SCORES, Dialect, Route
from cenote.api.dialects.text_requests import rank_best_first, score_as
from cenote.api.embedding_types import apply_truncation
from cenote.api.plain_route import Routes
from cenote.api.replies import TokenCounts
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import Int64, doc
from cenote.api.scoring_fields import ScoreInputBody, ScoreInputsBody, ScoringFields
from cenote.errors import BadRequest, InvalidBody
from cenote.protocol.input_types import ContentParts, ScoreInput
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.requests import ScoreRequest
from cenote.protocol.score_inputs import parse_score_input

routes = Routes(Route)
add_route = partial(
    routes.add,
    needs=SCORES,
    is_absent_if_unsupported=True,
    example={
        "query": "What is the capital of France?",
        "documents": ["The capital of Brazil is Brasilia.", "The capital of France is Paris."],
        "top_n": 1,
    },
)

NonNegativeInt = Annotated[int, Meta(ge=0, le=2**63 - 1)]
RankFields = Annotated[list[str], Meta(max_length=64)]  # each is looked up in every document
DOCUMENTS_PER_SEARCH_UNIT = 100


class RerankBody(ScoringFields, kw_only=True):
    """Query and documents, with the fields of vLLM, Jina, Cohere and Infinity."""

    query: ScoreInputBody
    documents: ScoreInputsBody
    top_n: Annotated[NonNegativeInt | None, doc("Return only the best documents; 0 for all.")] = None
    top_k: Annotated[NonNegativeInt | None, doc("Alias of top_n.")] = None
    return_documents: Annotated[bool | None, doc("Return the documents. Default: true.")] = None
    rank_fields: Annotated[RankFields | None, doc("Fields of object documents that form their text.")] = None
    max_doc_length: Annotated[Int64 | None, doc("Alias of max_tokens_per_doc, used by Jina.")] = None
    truncate: Annotated[
        bool | Literal["END", "START", "NONE"] | None,
        doc("Truncate to the model maximum, at the end or the start. Default: false only for /rerank."),
    ] = None
    truncation: Annotated[bool | None, doc("Alias of truncate.")] = None
    raw_scores: Annotated[
        bool | None, doc("true: logits; false: scores from 0 to 1. Default: as the model is configured.")
    ] = None
    max_chunks_per_doc: Annotated[Int64 | None, doc("Field of Cohere's version 1: long documents are truncated.")] = (
        None
    )


class RerankUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0  # required by clients of Together and Mixedbread


class RerankResult(msgspec.Struct, omit_defaults=True):
    index: int
    relevance_score: float
    document: dict[str, Any] | str | UnsetType = UNSET
    token_counts: TokenCounts | None = None


class Reranked(msgspec.Struct):
    """Ranked documents, best first; ties keep their order."""

    id: str
    model: str
    results: list[RerankResult]
    usage: RerankUsage
    meta: cohere_meta.Meta


class VoyageResult(msgspec.Struct):
    index: int
    relevance_score: float
    document: str | UnsetType = UNSET


class RerankedV1(Reranked):
    """Ranked documents, best first: in `results` for Cohere and Jina clients, in `data` for Voyage clients."""

    data: list[VoyageResult]  # with documents only if return_documents is true
    object: str = msgspec.field(default_factory=lambda: "list")


@add_route("/rerank")
async def rerank(body: RerankBody, context: RequestContext) -> Reranked:
    """Rank documents by relevance to a query, best first.

    Pairs that are too long are an error, as in vLLM, unless a field says that the client is Cohere's.
    """
    is_cohere = body.rank_fields is not None or body.max_chunks_per_doc is not None
    shape = context.settings.rerank_document_shape
    return await _rerank(body, context, version="1", truncate_by_default=is_cohere, document_shape=shape)


@add_route("/v1/rerank", reply_type=RerankedV1)
async def rerank_v1(body: RerankBody, context: RequestContext) -> Reranked:
    """Rank documents by relevance to a query, best first; long documents are truncated.

    Clients of Cohere, Jina and Voyage expect that.
    """
    return await _rerank(body, context, version="1", truncate_by_default=True, has_voyage_data=True)


@add_route("/v2/rerank")
async def rerank_v2(body: RerankBody, context: RequestContext) -> Reranked:
    """Rank documents by relevance to a query, best first; long documents are truncated.

    Clients of Cohere expect that; a response header reports it.
    """
    return await _rerank(body, context, version="2", truncate_by_default=True)


async def _rerank(
    body: RerankBody,
    context: RequestContext,
    *,
    version: str,
    truncate_by_default: bool,
    document_shape: Literal["object", "string"] = "object",
    has_voyage_data: bool = False,
) -> Reranked:
    documents = body.documents if isinstance(body.documents, list) else [body.documents]
    if not documents:
        raise BadRequest("documents is empty; expected at least one document", param="documents")
    context.check_num_items(len(documents), "documents")
    if body.return_documents is not False:
        await context.hold_echo(2 if has_voyage_data and body.return_documents else 1)
    inputs = [
        make_document_input(document, body.rank_fields, index, context.model_info)
        for index, document in enumerate(documents)
    ]
    request = make_score_request(body, context, inputs, truncate_by_default=truncate_by_default)
    scores = await score_as(request, body.raw_scores, context)
    units = BilledUnits(search_units=-(-len(documents) // DOCUMENTS_PER_SEARCH_UNIT))
    ranked = rank_best_first([item.score for item in scores], body.top_n or body.top_k)

    def make_result(index: int) -> RerankResult:
        shown: dict[str, Any] | str | UnsetType = UNSET
        if body.return_documents is not False:
            text = inputs[index]
            is_string = document_shape == "string"
            shown = make_document_string(text) if is_string else make_document_object(documents[index], text)
        counts = context.make_token_counts(scores[index], body.return_token_counts)
        return RerankResult(index, scores[index].score, shown, counts)

    reply = Reranked(
        context.make_response_id("score"),
        context.model,
        list(map(make_result, ranked)),
        RerankUsage(context.num_tokens, context.num_tokens),
        make_meta(context, version, units),
    )
    if not has_voyage_data:
        return reply
    data = [
        VoyageResult(
            index, scores[index].score, make_document_string(inputs[index]) if body.return_documents else UNSET
        )
        for index in ranked
    ]
    return RerankedV1(**msgspec.structs.asdict(reply), data=data)


def make_score_request(
    body: RerankBody, context: RequestContext, documents: Sequence[ScoreInput], *, truncate_by_default: bool
) -> ScoreRequest:
    request = body.to_score_request([parse_score_input(body.query, "query", context.model_info)], documents)
    limit = resolve_doc_limit(body.max_tokens_per_doc, body.max_doc_length)
    modes = body.truncate, body.truncation, True if truncate_by_default else None
    tokenization = apply_truncation(request.tokenization, modes, context)
    if tokenization is not request.tokenization:
        request = request.replace(tokenization=tokenization)
        # Cohere clients send 4096, which is above the maximum length of many models
        limit = 0 if limit >= context.model_info.max_model_len else limit
    return request.replace(max_tokens_per_doc=limit)


def resolve_doc_limit(max_tokens_per_doc: int | None, max_doc_length: int | None) -> int:
    if max_tokens_per_doc is not None and max_doc_length is not None and max_tokens_per_doc != max_doc_length:
        raise BadRequest(
            f"max_doc_length is an alias of max_tokens_per_doc; both were given, with different values: "
            f"{max_doc_length} and {max_tokens_per_doc}",
            param="max_doc_length",
        )
    return max_tokens_per_doc or max_doc_length or 0


def make_document_input(
    document: ScoreInputBody, rank_fields: Sequence[str] | None, index: int, model_info: ModelInfo
) -> ScoreInput:
    """Return the model input for a document. Several rank_fields become lines `name: text`."""
    if isinstance(document, str) or not rank_fields:
        return parse_score_input(document, f"documents.{index}", model_info)
    texts = {name: to_text(document[name]) for name in rank_fields if document.get(name) is not None}
    if not texts:
        raise InvalidBody(
            f"documents.{index}: none of the rank_fields {', '.join(rank_fields)} found; fields: {', '.join(document)}",
            param=f"body.documents.{index}",
        )
    return "\n".join(f"{name}: {text}" for name, text in texts.items()) if len(rank_fields) > 1 else texts.popitem()[1]


def to_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def make_document_object(document: ScoreInputBody, score_input: ScoreInput) -> dict[str, Any]:
    """Return the document with its other fields, its text in `text`, and content parts in `multi_modal`."""
    if isinstance(document, str):
        return {"text": document, "multi_modal": None}
    parts = content if isinstance(content := document.get("content"), list) else None
    fields = {name: value for name, value in document.items() if name != "content" or parts is None}
    if isinstance(score_input, ContentParts):
        return {**fields, "text": None, "multi_modal": score_input.content}
    text = fields.get("text")
    return {**fields, "text": text if isinstance(text, str) else score_input, "multi_modal": parts}


def make_document_string(score_input: ScoreInput) -> str:
    """Return the text of a document; of a document with images, its text parts."""
    if isinstance(score_input, str):
        return score_input
    texts = [part if isinstance(part, str) else part.get("text") for part in score_input.content]
    return "\n".join(text for text in texts if isinstance(text, str))


RERANK = Dialect("rerank", routes)
