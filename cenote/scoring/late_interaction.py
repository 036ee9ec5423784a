"""Score a pair by matching every token of the query with its best token of the document."""

from __future__ import annotations

from dataclasses import replace

from cenote.errors import PoolingError
from cenote.protocol.requests import Pooled, Scored, ScoreRequest, Timing
from cenote.scoring.scorer import Resources, Scorable, asked, broadcast, scorer
from cenote.scoring.separate_encoding import name_query, scored


@scorer("late-interaction")
async def late_interaction(request: ScoreRequest, engine: Resources, model: Scorable) -> list[Scored | PoolingError]:
    """Queries are read once, then the documents, which are compared where they are read: only numbers come back."""
    try:
        queries = await engine.pool(replace(asked(request, "token_embed", request.queries), role="query"))
    except PoolingError as error:
        name_query(error, len(request.queries))
        raise
    for_each = broadcast(queries, len(request.documents))
    failed = {place: query for place, query in enumerate(for_each) if isinstance(query, PoolingError)}
    read = {place: query for place, query in enumerate(for_each) if isinstance(query, Pooled)}
    found: dict[int, Scored | PoolingError] = {**failed, **await _matched(request, engine, model, read)}
    return [found[place] for place in range(len(for_each))]


async def _matched(
    request: ScoreRequest, engine: Resources, model: Scorable, queries: dict[int, Pooled]
) -> dict[int, Scored | PoolingError]:
    """The scores of the documents at these places, each with its query."""
    if not queries:
        return {}
    documents = [request.documents[place] for place in queries]
    second = replace(asked(request, "token_embed", documents), role="document", timing=Timing())
    answers = await engine.match(second, [query.data for query in queries.values()])
    request.timing.after(second.timing)
    return {
        place: answer if isinstance(answer, PoolingError) else scored(query, answer, model, answer.data)
        for (place, query), answer in zip(queries.items(), answers, strict=True)
    }
