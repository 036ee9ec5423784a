"""Score a pair by the cosine of its two embeddings."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from cenote.errors import PoolingError
from cenote.protocol.requests import Scored, ScoreRequest
from cenote.scoring.scorer import Resources, Scorable, scorer
from cenote.scoring.separate_encoding import compare


@scorer("bi-encoder")
async def bi_encoder(request: ScoreRequest, engine: Resources, model: Scorable) -> list[Scored | PoolingError]:
    return await compare(request, engine, model, "embed", cosine)


def cosine(query: Tensor, document: Tensor) -> Tensor:
    return F.cosine_similarity(query, document, dim=-1, eps=1e-8)
