"""Cross-encoder scoring: the model encodes query and document together and returns one logit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cenote.errors import PoolingError
from cenote.protocol.input_types import MultimodalPair, ScoreInput, TextPair
from cenote.protocol.requests import ScoreRequest
from cenote.protocol.results import ScoreResult
from cenote.scoring.scorer import (
    ScoreResults,
    ScoringContext,
    ScoringModel,
    broadcast_queries,
    make_pool_request,
    register_scorer,
)


@register_scorer("cross-encoder")
async def score_cross_encoder(request: ScoreRequest, context: ScoringContext, model: ScoringModel) -> ScoreResults:
    queries = broadcast_queries(request.queries, len(request.documents))
    variables = request.template_variables
    pairs = [
        _make_pair(query, document, request.template, variables, model.pair_prompt)
        for query, document in zip(queries, request.documents, strict=True)
    ]
    results = await context.pool(make_pool_request(request, "classify", pairs))
    return [
        result if isinstance(result, PoolingError) else ScoreResult.from_pool(result.data.item(), result)
        for result in results
    ]


def _make_pair(
    query: ScoreInput, document: ScoreInput, template: str | None, variables: Mapping[str, Any], prompt: str
) -> TextPair | MultimodalPair:
    if isinstance(query, str) and isinstance(document, str):
        return TextPair(prompt + query if template is None else query, document, template, variables)
    return MultimodalPair(query, document, template, variables)
