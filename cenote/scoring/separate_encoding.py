"""Scoring of separately encoded queries and documents: pool each input once, then compare each pair.

Bi-encoders compare embeddings by their cosine, sparse models compare vectors over the vocabulary by dot product.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cenote.errors import PoolingError
from cenote.protocol.params import Task
from cenote.protocol.requests import ScoreRequest, Timing
from cenote.protocol.results import PoolResult, ScoreResult
from cenote.scoring.scorer import (
    ScoreResults,
    ScoringContext,
    ScoringModel,
    broadcast_queries,
    make_pool_request,
    register_scorer,
    to_array,
)

Array = np.ndarray[Any, np.dtype[Any]]
Similarity = Callable[[Array, Array], Any]

MIN_NORM = 1e-8  # as in torch: shorter vectors are similar to none


@register_scorer("bi-encoder")
async def score_bi_encoder(request: ScoreRequest, context: ScoringContext, model: ScoringModel) -> ScoreResults:
    return await score_separately(request, context, model, "embed", cosine_similarity)


def cosine_similarity(query: Array, document: Array) -> Array:
    """Return the cosines of the last axis, summed in float64, so that they do not depend on the order of the sums."""
    query, document = query.astype(np.float64), document.astype(np.float64)
    norms = [np.maximum(np.sqrt(np.square(rows).sum(axis=-1)), MIN_NORM) for rows in (query, document)]
    cosines: Array = ((query * document).sum(axis=-1) / (norms[0] * norms[1])).astype(np.float32)
    return cosines


@register_scorer("sparse")
async def score_sparse(request: ScoreRequest, context: ScoringContext, model: ScoringModel) -> ScoreResults:
    return await score_separately(request, context, model, "sparse_embed", sparse_dot_product)


def sparse_dot_product(query: Array, document: Array) -> float:
    """Return the dot product of two sparse vectors given as (id, weight) rows sorted by id: [q, 2], [n, 2] -> []."""
    if not len(query) or not len(document):
        return 0.0
    ids, weights = document.T
    matches = np.searchsorted(ids, query[:, 0]).clip(max=len(ids) - 1)
    products = np.where(ids[matches] == query[:, 0], query[:, 1].astype(np.float64) * weights[matches], 0.0)
    return float(np.float32(products.sum()))


async def score_separately(
    request: ScoreRequest, context: ScoringContext, model: ScoringModel, task: Task, similarity: Similarity
) -> list[ScoreResult | PoolingError]:
    try:
        results = await _encode(request, context, model, task)
    except PoolingError as error:
        _relabel_error(error, len(request.queries))
        raise
    documents = results[len(request.queries) :]
    for index, document in enumerate(documents):
        if isinstance(document, PoolingError):
            document.index = index
    queries = broadcast_queries(results[: len(request.queries)], len(documents))

    def score(query: PoolResult | PoolingError, document: PoolResult | PoolingError) -> ScoreResult | PoolingError:
        if isinstance(query, PoolingError):
            return query
        if isinstance(document, PoolingError):
            return document
        return make_score_result(query, document, model, similarity(to_array(query.data), to_array(document.data)))

    timing = request.timing
    started_at = timing.mark_delivered()
    scores = await context.run_in_thread(lambda: list(map(score, queries, documents)))
    mark_repeated_query(scores, results[: len(request.queries)])
    timing.answered_at = time.monotonic()
    timing.inference_s += timing.answered_at - started_at
    timing.device_s += timing.answered_at - started_at
    return scores


async def _encode(
    request: ScoreRequest, context: ScoringContext, model: ScoringModel, task: Task
) -> list[PoolResult | PoolingError]:
    """Return the results of queries and documents: of one request, unless different modules encode them."""
    if not model.has_routes:
        return await context.pool(make_pool_request(request, task, [*request.queries, *request.documents]))
    request = request.replace(on_tokenized=None)  # of a part of the inputs
    queries = await context.pool(make_pool_request(request, task, request.queries).replace(role="query"))
    documents = make_pool_request(request, task, request.documents).replace(role="document", timing=Timing())
    try:
        results = await context.pool(documents)
    except PoolingError as error:
        if error.index is not None:
            error.index += len(queries)
        raise
    request.timing.add_sequential(documents.timing)
    return [*queries, *results]


def make_score_result(query: PoolResult, document: PoolResult, model: ScoringModel, score: Any) -> ScoreResult:
    # vLLM shows the pair as query and document joined by a padding token, which is not computed and not counted
    separator = [] if model.pad_token_id is None else [model.pad_token_id]
    return ScoreResult(
        float(score),
        np.concatenate((query.token_ids, np.array(separator, dtype=np.int32), document.token_ids)),
        query.num_tokens + document.num_tokens,
        query.num_input_tokens + document.num_input_tokens,
        query.is_input_count_exact and document.is_input_count_exact,
    )


def mark_repeated_query(
    scores: Sequence[ScoreResult | PoolingError], queries: Sequence[PoolResult | PoolingError]
) -> None:
    """Let the first result alone count a query that was encoded once for all documents."""
    if len(queries) == 1 and isinstance(queries[0], PoolResult):
        for score in [score for score in scores if isinstance(score, ScoreResult)][1:]:
            score.num_repeated_tokens = queries[0].num_tokens


def label_query_error(error: PoolingError, num_queries: int) -> None:
    """Name the query in the message and clear the index, which callers would take for that of a document."""
    if error.index is not None:
        error.message = f"query{f' {error.index}' if num_queries > 1 else ''}: {error.message}"
        error.index = None


def _relabel_error(error: PoolingError, num_queries: int) -> None:
    """Convert the index among queries and documents to one among the documents, or name the query."""
    if error.index is not None and error.index >= num_queries:
        error.index -= num_queries
    else:
        label_query_error(error, num_queries)
