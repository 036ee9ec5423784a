"""Mean of chunk embeddings, weighted by token counts."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


class WeightedMean:
    """Running mean of chunk embeddings, weighted by token counts; summed in the order of the chunks."""

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.num_tokens = 0
        self.next_chunk = 0
        self.waiting: dict[int, Tensor] = {}  # weighted vectors that arrived before an earlier chunk

    def add(self, chunk: int, vector: Tensor, num_tokens: int) -> None:
        self.waiting[chunk] = vector.float() * num_tokens
        self.num_tokens += num_tokens
        # the order in which chunks arrive depends on other requests, and so would the rounding of the sum
        while (weighted := self.waiting.pop(self.next_chunk, None)) is not None:
            self.total = weighted if self.total is None else self.total.add_(weighted)
            self.next_chunk += 1

    def result(self, *, normalize: bool) -> Tensor:
        assert self.total is not None, "a long text has at least two chunks"
        mean = self.total / self.num_tokens
        return F.normalize(mean, dim=-1, eps=1e-12) if normalize else mean
