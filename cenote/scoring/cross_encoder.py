"""Score a pair by the one logit of a model that reads both texts at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cenote.errors import PoolingError
from cenote.protocol.input_types import Pair, PartsPair, Side
from cenote.protocol.requests import Pooled, Scored, ScoreRequest
from cenote.scoring.scorer import Resources, Scorable, asked, broadcast, scorer


@scorer("cross-encoder")
async def cross_encoder(request: ScoreRequest, engine: Resources, model: Scorable) -> list[Scored | PoolingError]:
    queries = broadcast(request.queries, len(request.documents))
    variables = request.variables
    pairs = [
        _pair(query, document, request.template, variables)
        for query, document in zip(queries, request.documents, strict=True)
    ]
    answers = await engine.pool(asked(request, "classify", pairs))
    return [answer if isinstance(answer, PoolingError) else _scored(answer) for answer in answers]


def _pair(query: Side, document: Side, template: str | None, variables: Mapping[str, Any]) -> Pair | PartsPair:
    if isinstance(query, str) and isinstance(document, str):
        return Pair(query, document, template, variables)
    return PartsPair(query, document, template, variables)


def _scored(answer: Pooled) -> Scored:
    return Scored(
        answer.data.item(),
        answer.token_ids,
        answer.num_tokens,
        answer.num_input_tokens,
        answer.input_tokens_exact,
    )
