"""Sparse scoring: dot product of the sparse vectors of query and document."""

from __future__ import annotations

from typing import Any

import numpy as np

from cenote.errors import PoolingError
from cenote.protocol.requests import ScoreRequest
from cenote.protocol.results import ScoreResult
from cenote.scoring.scorer import ScoringContext, ScoringModel, register_scorer
from cenote.scoring.separate_encoding import score_separately

Array = np.ndarray[Any, np.dtype[Any]]


@register_scorer("sparse")
async def score_sparse(
    request: ScoreRequest, context: ScoringContext, model: ScoringModel
) -> list[ScoreResult | PoolingError]:
    return await score_separately(request, context, model, "sparse_embed", sparse_dot_product)


def sparse_dot_product(query: Array, document: Array) -> float:
    """Return the dot product of two sparse vectors given as (id, weight) rows sorted by id: [q, 2], [n, 2] -> []."""
    if not len(query) or not len(document):
        return 0.0
    ids, weights = document.T
    matches = np.searchsorted(ids, query[:, 0]).clip(max=len(ids) - 1)
    products = np.where(ids[matches] == query[:, 0], query[:, 1].astype(np.float64) * weights[matches], 0.0)
    return float(np.float32(products.sum()))
