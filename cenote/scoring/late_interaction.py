"""Score a pair by matching every token of the query with its best token of the document."""

from __future__ import annotations

from dataclasses import replace

from cenote.errors import PoolingError
from cenote.protocol.requests import ScoreRequest, Timing
from cenote.protocol.results import PoolResult, ScoreResult
from cenote.scoring.scorer import ScoringContext, ScoringModel, broadcast_queries, make_pool_request, register_scorer
from cenote.scoring.separate_encoding import label_query_error, make_score_result


@register_scorer("late-interaction")
async def score_late_interaction(
    request: ScoreRequest, context: ScoringContext, model: ScoringModel
) -> list[ScoreResult | PoolingError]:
    """Queries are read once, then the documents, which are compared where they are read: only numbers come back."""
    try:
        queries = await context.pool(replace(make_pool_request(request, "token_embed", request.queries), role="query"))
    except PoolingError as error:
        label_query_error(error, len(request.queries))
        raise
    for_each = broadcast_queries(queries, len(request.documents))
    failed = {place: query for place, query in enumerate(for_each) if isinstance(query, PoolingError)}
    read = {place: query for place, query in enumerate(for_each) if isinstance(query, PoolResult)}
    found: dict[int, ScoreResult | PoolingError] = {**failed, **await _score_documents(request, context, model, read)}
    return [found[place] for place in range(len(for_each))]


async def _score_documents(
    request: ScoreRequest, context: ScoringContext, model: ScoringModel, queries: dict[int, PoolResult]
) -> dict[int, ScoreResult | PoolingError]:
    """The scores of the documents at these places, each with its query."""
    if not queries:
        return {}
    documents = [request.documents[place] for place in queries]
    second = replace(make_pool_request(request, "token_embed", documents), role="document", timing=Timing())
    answers = await context.max_sim(second, [query.data for query in queries.values()])
    request.timing.add_sequential(second.timing)
    return {
        place: answer if isinstance(answer, PoolingError) else make_score_result(query, answer, model, answer.data)
        for (place, query), answer in zip(queries.items(), answers, strict=True)
    }
