"""How some models read a query or a document: with a marker, expanded, cut, and some tokens left out of the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cenote.inputs.tokenizer import TokenIds

Kept = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class Expansion:
    """What short queries are filled up with."""

    token: int
    length: int
    attended: bool  # whether the text sees it; itself it sees the text in any case


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """How texts of one role are read."""

    length: int | None = None  # longer ones are cut, all that is added included; as long as the model reads when unset
    marker: int | None = None  # stands second
    prompt: str = ""  # put before the text where a request brings none
    strips: bool = False  # white space around a text is no part of it
    expansion: Expansion | None = None
    skipped: tuple[int, ...] = ()  # tokens without a row in the answer

    @property
    def num_markers(self) -> int:
        return 0 if self.marker is None else 1

    def limit(self, asked: int | None, max_model_len: int) -> int:
        """The tokens a text is cut to: as many as a request asks for, or else as the model was made for."""
        if asked is not None and asked != -1:
            return asked
        return max_model_len if self.length is None else min(self.length, max_model_len)

    def text(self, given: str, prompt: str | None) -> str:
        whole = (self.prompt if prompt is None else prompt) + given
        return whole.strip() if self.strips else whole

    def marked(self, ids: TokenIds) -> TokenIds:
        if self.marker is None:
            return ids
        return np.concatenate((ids[:1], np.array([self.marker], dtype=np.int32), ids[1:]))

    def expanded(self, ids: TokenIds, limit: int) -> Expanded:
        """Filled up, never beyond the limit; how many tokens others see, and which have a row."""
        attended = None
        length = min(self.expansion.length, limit) if self.expansion is not None else 0
        if self.expansion is not None and len(ids) < length:
            attended = None if self.expansion.attended else len(ids)
            ids = np.pad(ids, (0, length - len(ids)), constant_values=self.expansion.token)
        kept = ~np.isin(ids, self.skipped) if self.skipped else None
        return Expanded(ids, attended, None if kept is None or kept.all() else kept)


class Expanded(NamedTuple):
    token_ids: TokenIds
    attended: int | None  # leading tokens that others see; all when unset
    kept: Kept | None  # tokens with a row in the answer; all when unset
