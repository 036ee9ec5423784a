"""Split texts longer than the model length into chunks, as vLLM's chunked processing does, and merge their results."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from cenote.inputs.tokenized_inputs import BoolArray, Int64Array, TokenizedInputs
from cenote.inputs.tokenizer import TokenIds

FloatArray: TypeAlias = "np.ndarray[Any, Any]"

MIN_NORM = np.float32(1e-12)  # as in torch's `normalize`: a vector of zeros stays one

logger = logging.getLogger("cenote")


class WeightedMean:
    """Running mean of chunk embeddings, weighted by token counts; summed in the order of the chunks."""

    def __init__(self, num_chunks: int) -> None:
        self.num_chunks = num_chunks
        self.total: FloatArray | None = None
        self.num_tokens = 0
        self.next_chunk = 0
        self.waiting: dict[int, FloatArray] = {}  # weighted vectors that arrived before an earlier chunk

    @property
    def is_complete(self) -> bool:
        return self.next_chunk == self.num_chunks

    def has(self, chunk: int) -> bool:
        """Whether the vector of a chunk has arrived."""
        return chunk < self.next_chunk or chunk in self.waiting

    def add(self, chunk: int, vector: FloatArray, num_tokens: int) -> None:
        self.waiting[chunk] = vector.astype(np.float32) * np.float32(num_tokens)
        self.num_tokens += num_tokens
        # the order in which chunks arrive depends on other requests, and so would the rounding of the sum
        while (weighted := self.waiting.pop(self.next_chunk, None)) is not None:
            self.total = weighted if self.total is None else self.total + weighted
            self.next_chunk += 1

    def result(self, *, normalize: bool) -> FloatArray:
        assert self.total is not None, "a long text has at least two chunks"
        mean: FloatArray = self.total / np.float32(self.num_tokens)
        return mean / np.maximum(np.linalg.norm(mean), MIN_NORM) if normalize else mean


class LongText(NamedTuple):
    """An input that is computed as several chunks, each of which has a row."""

    text: TokenizedInputs
    first_row: int
    mean: WeightedMean
    normalizes: bool


class LongTexts(dict[int, LongText]):
    """Those of a request, by the index of their input."""

    def split(
        self, inputs: TokenizedInputs, indices: Int64Array, max_tokens: int, *, normalizes: bool, first_row: int = 0
    ) -> tuple[TokenizedInputs, Int64Array]:
        """Return inputs with their chunks in place of those that are too long, and the index of the input of each row.

        `indices` are those of the inputs; `first_row` is the row of the first one.
        """
        is_long: BoolArray = inputs.lengths > max_tokens
        if inputs.images is not None:  # an input with images is never split, and may be longer than texts
            is_long &= np.array([images is None for images in inputs.images])
        if not is_long.any():
            return inputs, indices
        parts = list[TokenizedInputs]()
        row = first_row
        for number, index in enumerate(indices.tolist()):
            part = text = inputs.slice(number, number + 1)
            if is_long[number]:
                part = split_text(text, max_tokens)
                self[index] = LongText(text, row, WeightedMean(len(part)), normalizes)
            parts.append(part)
            row += len(part)
        return TokenizedInputs.concat(parts), np.repeat(indices, list(map(len, parts)))

    def add(self, index: int, row: int, vector: FloatArray, num_tokens: int) -> FloatArray | None:
        """Add the vector of a chunk; return that of the text if it is the last one."""
        _, first_row, mean, normalizes = self[index]
        mean.add(row - first_row, vector, num_tokens)
        return mean.result(normalize=normalizes) if mean.is_complete else None

    def has_row(self, index: int, row: int) -> bool:
        """Whether the vector of a chunk has arrived."""
        return index in self and self[index].mean.has(row - self[index].first_row)

    def count_continued(self, indices: Sequence[int]) -> int:
        """Return how many of consecutive rows, whose inputs are `indices`, are further chunks of a text."""
        return len(indices) - len(set(indices)) if self else 0


def split_text(text: TokenizedInputs, max_tokens: int) -> TokenizedInputs:
    """Return the chunks of one input; their token counts sum up to those of the text."""
    lengths = np.array([len(chunk) for chunk in split_into_chunks(text.token_ids, max_tokens)])
    chunks = TokenizedInputs.from_ids(text.token_ids, lengths, lengths.copy())
    length, _, num_input_tokens, num_unpooled, _, is_exact = text.only_record
    chunks.metadata["num_input_tokens"][-1] += num_input_tokens - length
    chunks.metadata["is_exact"][-1] = is_exact
    chunks.metadata["num_unpooled"][0] = min(num_unpooled, max_tokens - 1)
    if text.inputs_embeds is not None:
        return replace(chunks, inputs_embeds=np.split(text.inputs_embeds[0], np.cumsum(lengths)[:-1]))
    return chunks


def split_into_chunks(token_ids: TokenIds, max_tokens: int) -> list[TokenIds]:
    """Return consecutive views of at most `max_tokens` ids; the log lines are vLLM's."""
    chunks = [token_ids[start : start + max_tokens] for start in range(0, len(token_ids), max_tokens)]
    logger.info(
        "Input length %d exceeds max_position_embeddings %d, will use chunked processing", len(token_ids), max_tokens
    )
    logger.info("Split input of %d tokens into %d chunks (max_chunk_size: %d)", len(token_ids), len(chunks), max_tokens)
    return chunks
