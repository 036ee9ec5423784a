"""Score a pair by the words that both texts have, or might as well have: the product of their sparse vectors."""

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
    """The products of the weights of all ids that are in both, summed. [q, 2], [n, 2] -> []; ids in order."""
    if not len(query) or not len(document):
        return torch.zeros(())
    ids, weights = document.T.contiguous()
    at = torch.searchsorted(ids, query[:, 0].contiguous()).clamp(max=len(ids) - 1)
    return torch.where(ids[at] == query[:, 0], query[:, 1] * weights[at], 0.0).sum()
