"""Scores as logits or as probabilities, for clients that ask for one of them whatever the model is configured for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp

import numpy as np

from cenote.api.encoding import Float32Array
from cenote.api.request_context import RequestContext
from cenote.protocol.params import PoolingParams
from cenote.protocol.requests import PoolRequest, ScoreRequest
from cenote.protocol.results import ScoreResult


def rank_best_first(scores: Sequence[float], limit: int | None = None) -> list[int]:
    """Return the indices of the best scores, of all unless `limit` is set; ties keep their order."""
    return sorted(range(len(scores)), key=lambda index: -scores[index])[: limit or None]


async def score_as(request: ScoreRequest, raw_scores: bool | None, context: RequestContext) -> list[ScoreResult]:
    """Return logits, or their sigmoid, of a cross-encoder; other models, and None, as the model is configured."""
    score_types = context.model_info.score_types
    score_type = request.score_type or (score_types[0] if score_types else None)
    if raw_scores is None or score_type != "cross-encoder":
        return await context.score(request)
    params = replace(request.params or PoolingParams(), use_activation=False)
    results = await context.score(replace(request, params=params))
    return results if raw_scores else [replace(result, score=sigmoid(result.score)) for result in results]


async def classify_as(request: PoolRequest, raw_scores: bool, context: RequestContext) -> list[Float32Array]:
    """Return logits or probabilities: the sigmoid of one label, also if a cross-encoder is configured for logits."""
    has_one_label = "cross-encoder" in context.model_info.score_types
    params = PoolingParams(use_activation=not raw_scores and not has_one_label)
    results = await context.pool(replace(request, params=params))
    rows = [result.data for result in results]
    if raw_scores or not has_one_label:
        return rows
    return [np.array([sigmoid(value) for value in row.ravel().tolist()], dtype=np.float32) for row in rows]


def sigmoid(logit: float) -> float:
    return 1 / (1 + exp(-logit)) if logit >= 0 else exp(logit) / (1 + exp(logit))
