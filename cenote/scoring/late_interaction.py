"""Late-interaction scoring (MaxSim): each query token is matched with its most similar document token."""

from __future__ import annotations

from typing import Any

from cenote.errors import BadRequest, PoolingError
from cenote.protocol.requests import ScoreRequest, Timing
from cenote.protocol.results import PoolResult, ScoreResult
from cenote.scoring.scorer import (
    ScoreResults,
    ScoringContext,
    ScoringModel,
    broadcast_queries,
    make_pool_request,
    register_scorer,
)
from cenote.scoring.separate_encoding import label_query_error, make_score_result, mark_repeated_query


@register_scorer("late-interaction")
async def score_late_interaction(request: ScoreRequest, context: ScoringContext, model: ScoringModel) -> ScoreResults:
    """Encode the queries, then the documents; MaxSim runs on the device, so only scores are copied back."""
    if request.params is not None and request.params.late_chunking_params is not None:
        raise BadRequest("Late chunking cannot be combined with late-interaction scoring", param="late_chunking_params")
    request = request.replace(on_tokenized=None)  # of queries or documents alone
    try:
        queries = await context.pool(make_pool_request(request, "token_embed", request.queries).replace(role="query"))
    except PoolingError as error:
        label_query_error(error, len(request.queries))
        raise
    per_document = broadcast_queries(queries, len(request.documents))
    failed = {index: query for index, query in enumerate(per_document) if isinstance(query, PoolingError)}
    encoded = {index: query for index, query in enumerate(per_document) if isinstance(query, PoolResult)}
    scores = await _score_documents(request, context, model, encoded)
    results: dict[int, ScoreResult | PoolingError] = {**failed, **scores}
    ordered = [results[index] for index in range(len(per_document))]
    mark_repeated_query(ordered, queries)
    return ordered


async def _score_documents(
    request: ScoreRequest, context: ScoringContext, model: ScoringModel, queries: dict[int, PoolResult]
) -> dict[int, ScoreResult | PoolingError]:
    """Return the score of each document in `queries`, which maps document indices to encoded queries."""
    if not queries:
        return {}
    documents = [request.documents[index] for index in queries]
    pool_request = make_pool_request(request, "token_embed", documents).replace(role="document", timing=Timing())
    results = await context.max_sim(pool_request, [query.data for query in queries.values()])
    request.timing.add_sequential(pool_request.timing)

    def divide(score: Any, query: PoolResult) -> Any:
        return score / len(query.data) if model.divides_max_sim else score

    return {
        index: result
        if isinstance(result, PoolingError)
        else make_score_result(query, result, model, divide(result.data, query))
        for (index, query), result in zip(queries.items(), results, strict=True)
    }
