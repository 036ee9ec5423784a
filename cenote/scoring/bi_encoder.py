"""Bi-encoder scoring: cosine similarity of the embeddings of query and document."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from cenote.errors import PoolingError
from cenote.protocol.requests import ScoreRequest
from cenote.protocol.results import ScoreResult
from cenote.scoring.scorer import ScoringContext, ScoringModel, register_scorer
from cenote.scoring.separate_encoding import score_separately


@register_scorer("bi-encoder")
async def score_bi_encoder(
    request: ScoreRequest, context: ScoringContext, model: ScoringModel
) -> list[ScoreResult | PoolingError]:
    return await score_separately(request, context, model, "embed", cosine_similarity)


def cosine_similarity(query: Tensor, document: Tensor) -> Tensor:
    return F.cosine_similarity(query, document, dim=-1, eps=1e-8)
