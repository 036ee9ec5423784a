"""How some models read a query or a document: with a marker, expanded, cut, and some tokens left out of the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cenote.inputs.tokenizer import TokenIds

RowMask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class QueryExpansion:
    """What short queries are filled up with."""

    token_id: int
    length: int
    is_attended: bool  # whether the text sees it; itself it sees the text in any case


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleFormat:
    """How texts of one role are read."""

    max_length: int | None = (
        None  # longer ones are cut, all that is added included; as long as the model reads when unset
    )
    marker_id: int | None = None  # stands second
    prompt: str = ""  # put before the text where a request brings none
    strip_whitespace: bool = False  # white space around a text is no part of it
    expansion: QueryExpansion | None = None
    skiplist_ids: tuple[int, ...] = ()  # tokens without a row in the answer

    @property
    def num_markers(self) -> int:
        return 0 if self.marker_id is None else 1

    def resolve_max_tokens(self, requested: int | None, max_model_len: int) -> int:
        """The tokens a text is cut to: as many as a request asks for, or else as the model was made for."""
        if requested is not None and requested != -1:
            return requested
        return max_model_len if self.max_length is None else min(self.max_length, max_model_len)

    def format_text(self, text: str, prompt: str | None) -> str:
        whole = (self.prompt if prompt is None else prompt) + text
        return whole.strip() if self.strip_whitespace else whole

    def insert_marker(self, ids: TokenIds) -> TokenIds:
        if self.marker_id is None:
            return ids
        return np.concatenate((ids[:1], np.array([self.marker_id], dtype=np.int32), ids[1:]))

    def expand(self, ids: TokenIds, max_tokens: int) -> ExpandedIds:
        """Filled up, never beyond the limit; how many tokens others see, and which have a row."""
        attended = None
        length = min(self.expansion.length, max_tokens) if self.expansion is not None else 0
        if self.expansion is not None and len(ids) < length:
            attended = None if self.expansion.is_attended else len(ids)
            ids = np.pad(ids, (0, length - len(ids)), constant_values=self.expansion.token_id)
        kept = ~np.isin(ids, self.skiplist_ids) if self.skiplist_ids else None
        return ExpandedIds(ids, attended, None if kept is None or kept.all() else kept)


class ExpandedIds(NamedTuple):
    token_ids: TokenIds
    attended_len: int | None  # leading tokens that others see; all when unset
    row_mask: RowMask | None  # tokens with a row in the answer; all when unset
