"""Score a pair by the words that both texts have, or might as well have: the product of their sparse vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from cenote.errors import PoolingError
from cenote.protocol.requests import Scored, ScoreRequest
from cenote.scoring.scorer import Resources, Scorable, scorer
from cenote.scoring.separate_encoding import compare


@scorer("sparse")
async def sparse(request: ScoreRequest, engine: Resources, model: Scorable) -> list[Scored | PoolingError]:
    return await compare(request, engine, model, "sparse_embed", common_weight)


def common_weight(query: Tensor, document: Tensor) -> Tensor:
    """The products of the weights of all ids that are in both, summed. [q, 2], [n, 2] -> []; ids in order."""
    if not len(query) or not len(document):
        return torch.zeros(())
    ids, weights = document.T.contiguous()
    at = torch.searchsorted(ids, query[:, 0].contiguous()).clamp(max=len(ids) - 1)
    return torch.where(ids[at] == query[:, 0], query[:, 1] * weights[at], 0.0).sum()
