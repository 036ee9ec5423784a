"""Exclude the instruction of a prompt from pooling (GritLM): all tokens up to a marker in the text."""

from __future__ import annotations

import logging

from cenote.inputs.tokenizer import TokenIds, Tokenizer

logger = logging.getLogger("cenote")


class InstructionMask:
    """Find the end of the instruction in a tokenized prompt."""

    def __init__(self, tokenizer: Tokenizer, marker: str, first_token_id: int | None) -> None:
        # the text before the marker can change the marker's first token, never the others: match only those
        self.marker_ids: list[int] = tokenizer.encode([marker])[0].tolist()[1:]
        self.first_token_id = first_token_id  # the first token of every prompt

    def count_masked_tokens(self, token_ids: TokenIds) -> int:
        """Return the number of leading tokens that are not pooled."""
        if not len(token_ids) or int(token_ids[0]) != self.first_token_id:
            logger.warning("a prompt does not start with token %s; all of its tokens are pooled", self.first_token_id)
            return 0
        size, ids = len(self.marker_ids), token_ids.tolist()
        for start in range(1, len(ids) - size):  # a marker at the end would leave nothing to pool
            if ids[start : start + size] == self.marker_ids:
                return start + size
        return 1
