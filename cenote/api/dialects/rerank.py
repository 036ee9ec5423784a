"""Reranking: one body that the clients of vLLM, Jina and both versions of Cohere can write and read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from cenote.api.dialects import cohere_meta
from cenote.api.dialects.cohere_meta import BilledUnits, meta
from cenote.api.dialects.dialect import Dialect, Route
from cenote.api.replies import Reply, TokenCounts, json_reply
from cenote.api.request_context import Call
from cenote.api.request_fields import Integer, says
from cenote.api.scoring_fields import AnySide, AnySides, Scoring
from cenote.errors import BadRequest, InvalidBody
from cenote.protocol.input_types import Parts, Side
from cenote.protocol.requests import About, Scored, ScoreRequest
from cenote.protocol.score_inputs import as_side

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
DOCUMENTS_PER_SEARCH_UNIT = 100


class RerankBody(Scoring, kw_only=True):
    """What else clients send (`max_chunks_per_doc`, `relevant_spans`, `return_len`) is ignored like any other field."""

    query: AnySide
    documents: AnySides
    top_n: Annotated[Count | None, says("only so many of the best; 0: all of them")] = None
    top_k: Annotated[Count | None, says("another name of top_n")] = None
    return_documents: Annotated[bool | None, says("yes, unless it is false")] = None
    rank_fields: Annotated[list[str] | None, says("the fields that make the text of a document that is an object")] = (
        None
    )
    max_doc_length: Annotated[Integer | None, says("Jina's name of max_tokens_per_doc")] = None
    truncate: Annotated[
        bool | Literal["END", "START", "NONE"] | None,
        says("cut to what the model reads, at the end or the start; unset it depends on the route"),
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


async def rerank(body: RerankBody, call: Call) -> Reply:
    """A pair that is too long is an error, as the reference has it."""
    return await _rerank(body, call, version="1", truncate=False)


async def rerank_v2(body: RerankBody, call: Call) -> Reply:
    """Cohere's own route: its clients know no lengths and count on documents being cut; the reply's head tells it."""
    return await _rerank(body, call, version="2", truncate=True)


async def _rerank(body: RerankBody, call: Call, *, version: str, truncate: bool) -> Reply:
    call.check_model(body.model)
    documents = body.documents if isinstance(body.documents, list) else [body.documents]
    if not documents:
        raise BadRequest("documents is empty; give at least one document to rank", param="documents")
    call.check_count(len(documents), "documents")
    sides = [document_side(each, body.rank_fields, place, call.about) for place, each in enumerate(documents)]
    scores = await call.score(score_request(body, call, sides, truncate=truncate))
    units = BilledUnits(search_units=-(-len(documents) // DOCUMENTS_PER_SEARCH_UNIT))
    return json_reply(
        Reranked(
            call.identity("score"),
            call.model,
            [result(body, call, index, scores[index], documents[index], sides[index]) for index in best(scores, body)],
            RerankUsage(call.num_tokens, call.num_tokens),
            meta(call, version, units),
        )
    )


def score_request(body: RerankBody, call: Call, sides: Sequence[Side], *, truncate: bool) -> ScoreRequest:
    request = body.request([as_side(body.query, "query", call.about)], sides)
    limit = one_limit(body.max_tokens_per_doc, body.max_doc_length)
    wanted = truncate if body.truncate is None else body.truncate not in (False, "NONE")
    if body.truncate_prompt_tokens is None and wanted:
        side = "left" if body.truncate == "START" else request.tokenization.truncation_side
        how = replace(request.tokenization, truncate_prompt_tokens=-1, truncation_side=side)
        request = replace(request, tokenization=how)
        limit = 0 if limit >= call.about.max_model_len else limit  # as Cohere's own 4096, which many models never reach
    return replace(request, max_tokens_per_doc=limit)


def one_limit(limit: int | None, jinas: int | None) -> int:
    if limit is not None and jinas is not None and limit != jinas:
        raise BadRequest(
            f"max_doc_length is another name of max_tokens_per_doc: got {jinas} and {limit}; give one",
            param="max_doc_length",
        )
    return limit or jinas or 0


def best(scores: Sequence[Scored], body: RerankBody) -> list[int]:
    ranked = sorted(range(len(scores)), key=lambda index: -scores[index].score)
    return ranked[: body.top_n or body.top_k or len(ranked)]


def result(body: RerankBody, call: Call, index: int, scored: Scored, document: AnySide, side: Side) -> RerankResult:
    counts = call.token_counts(scored, body.return_token_counts)
    shown: dict[str, Any] | str | UnsetType = UNSET
    if body.return_documents is not False:
        bare = call.settings.rerank_document_shape == "string"
        shown = document_string(side) if bare else document_object(document, side)
    return RerankResult(index, scored.score, shown, counts)


def document_side(document: AnySide, rank_fields: Sequence[str] | None, place: int, about: About) -> Side:
    """What the model reads of a document. Several fields become lines that say which is which."""
    if isinstance(document, str) or not rank_fields:
        return as_side(document, f"documents.{place}", about)
    found = {name: as_text(document[name]) for name in rank_fields if document.get(name) is not None}
    if not found:
        raise InvalidBody(
            f"documents.{place}: has none of the rank_fields {', '.join(rank_fields)}; it has {', '.join(document)}",
            param=f"body.documents.{place}",
        )
    return "\n".join(f"{name}: {text}" for name, text in found.items()) if len(rank_fields) > 1 else found.popitem()[1]


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def document_object(document: AnySide, side: Side) -> dict[str, Any]:
    """With `text` for everybody, and whatever else the client put into its document; parts go by their own name."""
    if isinstance(document, str):
        return {"text": document, "multi_modal": None}
    parts = content if isinstance(content := document.get("content"), list) else None
    kept = {name: value for name, value in document.items() if name != "content" or parts is None}
    if isinstance(side, Parts):
        return {**kept, "text": None, "multi_modal": side.content}
    given = kept.get("text")
    return {**kept, "text": given if isinstance(given, str) else side, "multi_modal": parts}


def document_string(side: Side) -> str:
    """Of a document with images, the texts beside them."""
    if isinstance(side, str):
        return side
    texts = [part if isinstance(part, str) else part.get("text") for part in side.content]
    return "\n".join(text for text in texts if isinstance(text, str))


def _route(paths: Sequence[str], handler: Any, summary: str) -> Route:
    return Route(
        paths=paths,
        body=RerankBody,
        handler=handler,
        summary=summary,
        reply=Reranked,
        api="Rerank (Score)",
        offered=lambda about: bool(about.score_types),
        example={
            "query": "What is the capital of France?",
            "documents": ["The capital of Brazil is Brasilia.", "The capital of France is Paris."],
            "top_n": 1,
        },
    )


RERANK = Dialect(
    "rerank",
    [
        _route(("/rerank", "/v1/rerank"), rerank, "Documents by how well they answer a query, best first"),
        _route(("/v2/rerank",), rerank_v2, "The same; documents that are too long are cut"),
    ],
)
