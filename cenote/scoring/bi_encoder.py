"""Bi-encoder scoring: cosine similarity of the embeddings of query and document."""

from __future__ import annotations

from typing import Any

import numpy as np

from cenote.errors import PoolingError
from cenote.protocol.requests import ScoreRequest
from cenote.protocol.results import ScoreResult
from cenote.scoring.scorer import ScoringContext, ScoringModel, register_scorer
from cenote.scoring.separate_encoding import score_separately

Array = np.ndarray[Any, np.dtype[Any]]

MIN_NORM = 1e-8  # as in torch: shorter vectors are similar to none


@register_scorer("bi-encoder")
async def score_bi_encoder(
    request: ScoreRequest, context: ScoringContext, model: ScoringModel
) -> list[ScoreResult | PoolingError]:
    return await score_separately(request, context, model, "embed", cosine_similarity)


def cosine_similarity(query: Array, document: Array) -> Array:
    """Return the cosines of the last axis, summed in float64, so that they do not depend on the order of the sums."""
    query, document = query.astype(np.float64), document.astype(np.float64)
    norms = [np.maximum(np.sqrt(np.square(rows).sum(axis=-1)), MIN_NORM) for rows in (query, document)]
    cosines: Array = ((query * document).sum(axis=-1) / (norms[0] * norms[1])).astype(np.float32)
    return cosines
