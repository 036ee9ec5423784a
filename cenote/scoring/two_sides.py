"""What scorers share that read query and document apart: each side once, then a number for every pair."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from cenote.errors import PoolingError
from cenote.request import Pooled, PoolRequest, Scored, ScoreRequest, Task
from cenote.scoring.scorer import Pool, Scorable, broadcast


async def compare(
    request: ScoreRequest, pool: Pool, model: Scorable, task: Task, similarity: Callable[[Tensor, Tensor], Tensor]
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
        answers = await pool(both)
    except PoolingError as error:
        if error.index is not None and error.index >= len(request.queries):
            error.index -= len(request.queries)  # which of the documents it was
        raise
    documents = answers[len(request.queries) :]
    queries = broadcast(answers[: len(request.queries)], len(documents))
    return [_scored(query, document, model, similarity) for query, document in zip(queries, documents, strict=True)]


def _scored(
    query: Pooled | PoolingError,
    document: Pooled | PoolingError,
    model: Scorable,
    similarity: Callable[[Tensor, Tensor], Tensor],
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
