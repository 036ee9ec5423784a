"""What scorers share that read query and document apart: each side once, then a number for every pair."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from torch import Tensor

from cenote.errors import PoolingError
from cenote.request import Pooled, PoolRequest, Scored, ScoreRequest, Task
from cenote.scoring.scorer import Resources, Scorable, broadcast

Similarity = Callable[[Tensor, Tensor], Tensor]


async def compare(
    request: ScoreRequest, engine: Resources, model: Scorable, task: Task, similarity: Similarity
) -> list[Scored | PoolingError]:
    both = PoolRequest(
        task=task,
        inputs=[*request.queries, *request.documents],
        params=request.params,
        tokenization=request.tokenization,
        priority=request.priority,
        keep_going=request.keep_going,
        timing=request.timing,
    )
    try:
        answers = await engine.pool(both)
    except PoolingError as error:
        _name_side(error, len(request.queries))
        raise
    documents = answers[len(request.queries) :]
    queries = broadcast(answers[: len(request.queries)], len(documents))

    def scores() -> list[Scored | PoolingError]:
        return [_scored(query, document, model, similarity) for query, document in zip(queries, documents, strict=True)]

    began = time.monotonic()
    scored = await engine.aside(scores)
    request.timing.inference += time.monotonic() - began
    return scored


def _name_side(error: PoolingError, num_queries: int) -> None:
    """Which of the documents it was, by their own numbers, or which query."""
    if error.index is None:
        return
    if error.index >= num_queries:
        error.index -= num_queries
        return
    error.message = f"query{f' {error.index}' if num_queries > 1 else ''}: {error.message}"
    error.index = None


def _scored(
    query: Pooled | PoolingError,
    document: Pooled | PoolingError,
    model: Scorable,
    similarity: Similarity,
) -> Scored | PoolingError:
    if isinstance(query, PoolingError):
        return query
    if isinstance(document, PoolingError):
        return document
    # a padding token stands between the two, as the clients of others count it
    between = [] if model.pad_token_id is None else [model.pad_token_id]
    ids = np.concatenate((query.token_ids, np.array(between, dtype=np.int32), document.token_ids))
    return Scored(
        similarity(query.data.float(), document.data.float()).item(),
        ids,
        len(ids),
        query.num_input_tokens + len(between) + document.num_input_tokens,
        query.input_tokens_exact and document.input_tokens_exact,
    )
