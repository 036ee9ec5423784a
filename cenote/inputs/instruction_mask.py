"""Instructions that a model reads but does not pool: everything up to a mark in the text itself."""

from __future__ import annotations

import logging

from cenote.inputs.tokenizer import TokenIds, Tokenizer

logger = logging.getLogger("cenote")


class Instruction:
    """Finds where the text begins that a prompt is about."""

    def __init__(self, tokenizer: Tokenizer, mark: str, first_id: int | None) -> None:
        # what comes before the mark changes its first token, and nothing else of it
        self.mark: list[int] = tokenizer.encode([mark])[0].tolist()[1:]
        self.first_id = first_id  # the token that every prompt begins with

    def num_tokens(self, ids: TokenIds) -> int:
        """How many leading tokens pooling leaves out."""
        if not len(ids) or int(ids[0]) != self.first_id:
            logger.warning("a prompt does not begin with token %s, so all of it is pooled", self.first_id)
            return 0
        size, listed = len(self.mark), ids.tolist()
        for start in range(1, len(listed) - size):  # a mark at the very end would leave nothing
            if listed[start : start + size] == self.mark:
                return start + size
        return 1
