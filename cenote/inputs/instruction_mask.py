"""Find a marker in a tokenized prompt: the end of the instruction, which is not pooled, or the end of the prompt."""

from __future__ import annotations

import logging

from cenote.errors import BadRequest
from cenote.inputs.tokenizer import TokenIds, Tokenizer

logger = logging.getLogger("cenote")


class InstructionMask:
    """Find the end of the instruction in a tokenized prompt (GritLM): tokens up to it are not pooled."""

    is_required = False  # inputs without token ids are pooled as a whole

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


class PromptEnd:
    """Find the end of the prompt of a conversation, whose state a reward model reads (ArmoRM)."""

    is_required = True

    def __init__(self, tokenizer: Tokenizer, marker: str) -> None:
        self.marker = marker
        self.marker_ids: list[int] = tokenizer.encode([marker])[0].tolist()

    def count_masked_tokens(self, token_ids: TokenIds) -> int:
        """Return the number of tokens before the last marker."""
        size, ids = len(self.marker_ids), token_ids.tolist()
        for start in range(len(ids) - size, -1, -1):
            if ids[start : start + size] == self.marker_ids:
                return start
        raise BadRequest(
            f"the input has no {self.marker!r}, where this reward model reads the end of the prompt: send a "
            "conversation (`messages`) that ends with the answer, or the text that the chat template writes"
        )
