"""Texts longer than the model reads: cut into chunks, and their vectors merged again."""

from __future__ import annotations

import logging

from cenote.inputs.tokenizer import TokenIds

logger = logging.getLogger("cenote")


def split_into_chunks(token_ids: TokenIds, max_tokens: int) -> list[TokenIds]:
    """Consecutive views of at most `max_tokens` ids."""
    chunks = [token_ids[start : start + max_tokens] for start in range(0, len(token_ids), max_tokens)]
    logger.info(
        "Input length %d exceeds max_position_embeddings %d, will use chunked processing", len(token_ids), max_tokens
    )
    logger.info("Split input of %d tokens into %d chunks (max_chunk_size: %d)", len(token_ids), len(chunks), max_tokens)
    return chunks
