"""Mean of chunk embeddings, weighted by token counts."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


class WeightedMean:
    """Running mean of chunk embeddings, weighted by token counts."""

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.num_tokens = 0

    def add(self, vector: Tensor, num_tokens: int) -> None:
        weighted = vector.float() * num_tokens
        self.total = weighted if self.total is None else self.total.add_(weighted)
        self.num_tokens += num_tokens

    def result(self, *, normalize: bool) -> Tensor:
        assert self.total is not None, "a long text has at least two chunks"
        mean = self.total / self.num_tokens
        return F.normalize(mean, dim=-1, eps=1e-12) if normalize else mean
