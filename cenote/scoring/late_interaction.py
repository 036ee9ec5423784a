"""Score a pair by matching every token of the query with its best token of the document."""

from __future__ import annotations

from torch import Tensor

from cenote.errors import PoolingError
from cenote.request import Scored, ScoreRequest
from cenote.scoring.scorer import Resources, Scorable, scorer
from cenote.scoring.two_sides import compare


@scorer("late-interaction")
async def late_interaction(request: ScoreRequest, engine: Resources, model: Scorable) -> list[Scored | PoolingError]:
    return await compare(request, engine, model, "token_embed", max_sim)


def max_sim(query: Tensor, document: Tensor) -> Tensor:
    """For every query token its best match in the document, summed. [q, d], [n, d] -> []"""
    return (query @ document.T).amax(dim=-1).sum()
