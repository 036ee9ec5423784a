"""Sparse scoring: dot product of the sparse vectors of query and document."""

from __future__ import annotations

import torch
from torch import Tensor

from cenote.errors import PoolingError
from cenote.protocol.requests import ScoreRequest
from cenote.protocol.results import ScoreResult
from cenote.scoring.scorer import ScoringContext, ScoringModel, register_scorer
from cenote.scoring.separate_encoding import score_separately


@register_scorer("sparse")
async def score_sparse(
    request: ScoreRequest, context: ScoringContext, model: ScoringModel
) -> list[ScoreResult | PoolingError]:
    return await score_separately(request, context, model, "sparse_embed", sparse_dot_product)


def sparse_dot_product(query: Tensor, document: Tensor) -> Tensor:
    """Return the dot product of two sparse vectors given as (id, weight) rows sorted by id: [q, 2], [n, 2] -> []."""
    if not len(query) or not len(document):
        return torch.zeros(())
    ids, weights = document.T.contiguous()
    matches = torch.searchsorted(ids, query[:, 0].contiguous()).clamp(max=len(ids) - 1)
    return torch.where(ids[matches] == query[:, 0], query[:, 1] * weights[matches], 0.0).sum()
