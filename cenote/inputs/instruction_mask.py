"""Instructions that a model reads but does not pool: everything up to a mark in the text itself."""

from __future__ import annotations

import logging

from cenote.inputs.tokenizer import TokenIds, Tokenizer

logger = logging.getLogger("cenote")


class InstructionMask:
    """Finds where the text begins that a prompt is about."""

    def __init__(self, tokenizer: Tokenizer, marker: str, first_token_id: int | None) -> None:
        # what comes before the mark changes its first token, and nothing else of it
        self.marker_ids: list[int] = tokenizer.encode([marker])[0].tolist()[1:]
        self.first_token_id = first_token_id  # the token that every prompt begins with

    def count_masked_tokens(self, token_ids: TokenIds) -> int:
        """How many leading tokens pooling leaves out."""
        if not len(token_ids) or int(token_ids[0]) != self.first_token_id:
            logger.warning("a prompt does not begin with token %s, so all of it is pooled", self.first_token_id)
            return 0
        size, listed = len(self.marker_ids), token_ids.tolist()
        for start in range(1, len(listed) - size):  # a mark at the very end would leave nothing
            if listed[start : start + size] == self.marker_ids:
                return start + size
        return 1
