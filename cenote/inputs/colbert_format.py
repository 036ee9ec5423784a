"""ColBERT input formats: marker token, query expansion, length limit and skiplist, per role (query or document)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cenote.inputs.tokenizer import TokenIds

RowMask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class QueryExpansion:
    """Mask tokens appended to short queries (query augmentation)."""

    token_id: int
    length: int
    is_attended: bool  # whether text tokens attend to the expansion tokens; these attend to the text in any case


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleFormat:
    """Input format of one role."""

    max_length: int | None = None  # truncation length with all added tokens; None: the model length
    marker_id: int | None = None  # inserted after the first token
    prompt: str = ""  # default prompt, if the request has none
    strip_whitespace: bool = False
    expansion: QueryExpansion | None = None
    skiplist_ids: tuple[int, ...] = ()  # tokens without a row in the output
    suffix_ids: tuple[int, ...] = ()  # appended to every text, never truncated

    @property
    def num_added(self) -> int:
        """Tokens that the format adds to a text, besides expansion tokens."""
        return len(self.suffix_ids) + (0 if self.marker_id is None else 1)

    def resolve_max_tokens(self, requested: int | None, max_model_len: int) -> int:
        """Return the truncation length: that of the request, else that of the format."""
        if requested is not None and requested != -1:
            return requested
        return max_model_len if self.max_length is None else min(self.max_length, max_model_len)

    def format_text(self, text: str, prompt: str | None) -> str:
        full_text = (self.prompt if prompt is None else prompt) + text
        return full_text.strip() if self.strip_whitespace else full_text

    def insert_marker(self, ids: TokenIds) -> TokenIds:
        if self.marker_id is None:
            return ids
        return np.concatenate((ids[:1], np.array([self.marker_id], dtype=np.int32), ids[1:]))

    def append_suffix(self, ids: TokenIds) -> TokenIds:
        return np.concatenate((ids, np.array(self.suffix_ids, dtype=np.int32))) if self.suffix_ids else ids

    def expand(self, ids: TokenIds, max_tokens: int) -> ExpandedIds:
        """Append expansion tokens up to the limit, and mask the tokens of the skiplist."""
        attended_len = None
        length = min(self.expansion.length, max_tokens) if self.expansion is not None else 0
        if self.expansion is not None and len(ids) < length:
            attended_len = None if self.expansion.is_attended else len(ids)
            ids = np.pad(ids, (0, length - len(ids)), constant_values=self.expansion.token_id)
        row_mask = ~np.isin(ids, self.skiplist_ids) if self.skiplist_ids else None
        return ExpandedIds(ids, attended_len, None if row_mask is None or row_mask.all() else row_mask)


class ExpandedIds(NamedTuple):
    token_ids: TokenIds
    attended_len: int | None  # leading tokens that others attend to; None: all
    row_mask: RowMask | None  # tokens with a row in the output; None: all
