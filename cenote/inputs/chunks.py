"""Split texts longer than the model length into chunks, as vLLM's chunked processing does."""

from __future__ import annotations

import logging

from cenote.inputs.tokenizer import TokenIds

logger = logging.getLogger("cenote")


def split_into_chunks(token_ids: TokenIds, max_tokens: int) -> list[TokenIds]:
    """Return consecutive views of at most `max_tokens` ids; the log lines are vLLM's."""
    chunks = [token_ids[start : start + max_tokens] for start in range(0, len(token_ids), max_tokens)]
    logger.info(
        "Input length %d exceeds max_position_embeddings %d, will use chunked processing", len(token_ids), max_tokens
    )
    logger.info("Split input of %d tokens into %d chunks (max_chunk_size: %d)", len(token_ids), len(chunks), max_tokens)
    return chunks
