"""Mean of chunk embeddings, weighted by token counts."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

MIN_NORM = np.float32(1e-12)  # as in torch's `normalize`: a vector of zeros stays one


class WeightedMean:
    """Running mean of chunk embeddings, weighted by token counts; summed in the order of the chunks."""

    def __init__(self, num_chunks: int) -> None:
        self.num_chunks = num_chunks
        self.total: Array | None = None
        self.num_tokens = 0
        self.next_chunk = 0
        self.waiting: dict[int, Array] = {}  # weighted vectors that arrived before an earlier chunk

    @property
    def is_complete(self) -> bool:
        return self.next_chunk == self.num_chunks

    def has(self, chunk: int) -> bool:
        """Whether the vector of a chunk has arrived."""
        return chunk < self.next_chunk or chunk in self.waiting

    def add(self, chunk: int, vector: Array, num_tokens: int) -> None:
        self.waiting[chunk] = vector.astype(np.float32) * np.float32(num_tokens)
        self.num_tokens += num_tokens
        # the order in which chunks arrive depends on other requests, and so would the rounding of the sum
        while (weighted := self.waiting.pop(self.next_chunk, None)) is not None:
            self.total = weighted if self.total is None else self.total + weighted
            self.next_chunk += 1

    def result(self, *, normalize: bool) -> Array:
        assert self.total is not None, "a long text has at least two chunks"
        mean: Array = self.total / np.float32(self.num_tokens)
        return mean / np.maximum(np.linalg.norm(mean), MIN_NORM) if normalize else mean
