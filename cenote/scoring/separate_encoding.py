"""What scorers share that read query and document apart: each side once, then a number for every pair."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from torch import Tensor

from cenote.errors import PoolingError
from cenote.protocol.requests import Pooled, Scored, ScoreRequest, Task
from cenote.scoring.scorer import Resources, Scorable, asked, broadcast

Similarity = Callable[[Tensor, Tensor], Tensor]


async def compare(
    request: ScoreRequest, engine: Resources, model: Scorable, task: Task, similarity: Similarity
) -> list[Scored | PoolingError]:
    try:
        answers = await engine.pool(asked(request, task, [*request.queries, *request.documents]))
    except PoolingError as error:
        _name_side(error, len(request.queries))
        raise
    documents = answers[len(request.queries) :]
    queries = broadcast(answers[: len(request.queries)], len(documents))

    def score(query: Pooled | PoolingError, document: Pooled | PoolingError) -> Scored | PoolingError:
        if isinstance(query, PoolingError):
            return query
        if isinstance(document, PoolingError):
            return document
        return scored(query, document, model, similarity(query.data.float(), document.data.float()))

    began = time.monotonic()
    scores = await engine.aside(lambda: list(map(score, queries, documents)))
    request.timing.inference += time.monotonic() - began
    return scores


def scored(query: Pooled, document: Pooled, model: Scorable, score: Tensor) -> Scored:
    # a padding token stands between the two, as the clients of others count it
    between = [] if model.pad_token_id is None else [model.pad_token_id]
    ids = np.concatenate((query.token_ids, np.array(between, dtype=np.int32), document.token_ids))
    return Scored(
        score.item(),
        ids,
        len(ids),
        query.num_input_tokens + len(between) + document.num_input_tokens,
        query.input_tokens_exact and document.input_tokens_exact,
    )


def name_query(error: PoolingError, num_queries: int) -> None:
    """Say that it was a query, and which, so that its number is not taken for that of a document."""
    if error.index is not None:
        error.message = f"query{f' {error.index}' if num_queries > 1 else ''}: {error.message}"
        error.index = None


def _name_side(error: PoolingError, num_queries: int) -> None:
    """Which of the documents it was, by their own numbers, or which query."""
    if error.index is not None and error.index >= num_queries:
        error.index -= num_queries
    else:
        name_query(error, num_queries)
