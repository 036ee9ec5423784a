"""Texts longer than the model reads: cut into chunks, and their vectors merged again."""

from __future__ import annotations

import logging

from torch import Tensor
from torch.nn import functional as F

from cenote.inputs.tokenizer import TokenIds

logger = logging.getLogger("cenote")


def split(ids: TokenIds, max_tokens: int) -> list[TokenIds]:
    """Consecutive views of at most `max_tokens` ids."""
    chunks = [ids[start : start + max_tokens] for start in range(0, len(ids), max_tokens)]
    logger.info("Input length %d exceeds max_position_embeddings %d, will use chunked processing", len(ids), max_tokens)
    logger.info("Split input of %d tokens into %d chunks (max_chunk_size: %d)", len(ids), len(chunks), max_tokens)
    return chunks


class WeightedMean:
    """The mean of vectors, each counted by its tokens, kept as one running sum."""

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.num_tokens = 0

    def add(self, vector: Tensor, num_tokens: int) -> None:
        part = vector.float() * num_tokens
        self.total = part if self.total is None else self.total.add_(part)
        self.num_tokens += num_tokens

    def result(self, *, normalize: bool) -> Tensor:
        assert self.total is not None, "a long text has at least two chunks"
        mean = self.total / self.num_tokens
        return F.normalize(mean, dim=-1, eps=1e-12) if normalize else mean
