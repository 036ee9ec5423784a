"""Many plain inputs of one kind, rendered at once in arrays; where one of them needs a closer look, none is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from cenote.errors import BadRequest
from cenote.inputs.limits import Limits
from cenote.inputs.tokenized_inputs import Integers, Strip, gathered
from cenote.inputs.tokenizer import CHARS_PER_TOKEN, Frame, TokenIds, Tokenizer
from cenote.protocol.input_types import Pair
from cenote.protocol.requests import Tokenization, TruncationSide


class Pieces(NamedTuple):
    """Parts of an array of tokens, one for each input."""

    starts: Integers
    lengths: Integers

    def cut(self, room: int | None, side: TruncationSide) -> Pieces:
        if room is None or self.lengths.max() <= room:
            return self
        kept = np.minimum(self.lengths, max(0, room))
        return Pieces(self.starts if side == "right" else self.starts + self.lengths - kept, kept)


class Plain:
    """How plain inputs of a slice are read. Each way answers None where not all of them are as usual."""

    def __init__(self, tokenizer: Tokenizer, how: Tokenization, limits: Limits, max_tokens: int | None) -> None:
        self.tokenizer = tokenizer
        self.how = how
        self.limits = limits
        self.max_tokens = max_tokens  # what inputs are cut to
        self.side = how.truncation_side or tokenizer.truncation_side

    def token_ids(self, prompts: Sequence[Any], vocab_size: int) -> Strip | None:
        ids = _flat(prompts)
        if ids is None or not len(ids) or ids.min() < 0 or ids.max() >= vocab_size:
            return None
        lengths = np.fromiter(map(len, prompts), dtype=np.int64, count=len(prompts))
        whole = Pieces(np.cumsum(lengths) - lengths, lengths)
        kept = whole.cut(self.max_tokens, self.side)
        ids = ids.astype(np.int32, copy=False)
        return Strip.plain(ids if kept is whole else gathered(ids, *kept), kept.lengths, lengths)

    def texts(self, given: Sequence[str], prompt: str | None, *, skips_prompt: bool) -> Strip | None:
        frame = self.tokenizer.single if self.how.add_special_tokens else self.tokenizer.single.bare
        texts = [prompt + text for text in given] if prompt else given
        if (found := self._encoded(texts)) is None:
            return None
        ids, pieces = found
        total = pieces.lengths + frame.num_tokens
        if not self._is_cut_inside(total, frame):
            return None
        kept = pieces.cut(None if self.max_tokens is None else self.max_tokens - frame.num_tokens, self.side)
        size = kept.lengths + frame.num_tokens
        strip = Strip.plain(_framed(ids, frame, [kept]), size, total)
        if prompt and skips_prompt:
            (start,) = self.tokenizer.encode([prompt], lower_case=self.how.do_lower_case)
            lost = total - size if self.side == "left" else 0  # the prompt is what was cut first
            strip.facts["skip"] = np.clip(len(start) + len(frame.prefix) - lost, 0, np.maximum(size - 1, 0))
        return strip

    def pairs(self, given: Sequence[Pair]) -> Strip | None:
        frame = self.tokenizer.pair if self.how.add_special_tokens else self.tokenizer.pair.bare
        rows: dict[str, int] = {}  # each text is tokenized once
        queries = [rows.setdefault(pair.query, len(rows)) for pair in given]
        documents = [rows.setdefault(pair.document, len(rows)) for pair in given]
        if (found := self._encoded(list(rows))) is None:
            return None
        ids, pieces = found
        query, document = (Pieces(pieces.starts[side], pieces.lengths[side]) for side in (queries, documents))
        total = query.lengths + document.lengths + frame.num_tokens
        if self.max_tokens is not None and total.max() > self.max_tokens:
            return None
        strip = Strip.plain(_framed(ids, frame, [query, document]), total, total)
        if frame.second_type:
            strip.facts["second_start"] = len(frame.prefix) + query.lengths + len(frame.middle)
        return strip

    def _encoded(self, texts: Sequence[str]) -> tuple[TokenIds, Pieces] | None:
        longest, per_token = max(map(len, texts)), self.tokenizer.max_chars_per_token
        if self.max_tokens is not None:
            per_token = min(per_token, CHARS_PER_TOKEN)
        most = self.limits.max_tokens if self.max_tokens is None else self.max_tokens
        if longest > most * per_token and (self.limits.bounded or self.max_tokens is not None):
            return None  # a huge text is cut or refused before it is tokenized
        try:
            ids, offsets = self.tokenizer.encode_flat(texts, lower_case=self.how.do_lower_case)
        except BadRequest:
            return None
        return ids, Pieces(offsets[:-1], np.diff(offsets))

    def _is_cut_inside(self, total: Integers, frame: Frame) -> bool:
        """Whether special tokens stay whole: an explicit side cuts them as well, and so does no room for them."""
        if self.max_tokens is None or total.max() <= self.max_tokens:
            return True
        return self.how.truncation_side is None and frame.num_tokens <= self.max_tokens


def _flat(prompts: Sequence[Any]) -> np.ndarray[Any, Any] | None:
    """All token ids in one array, if they are nothing but that."""
    kinds = set(map(type, prompts))
    if kinds == {np.ndarray}:
        if any(ids.ndim != 1 or ids.dtype.kind not in "iu" for ids in prompts):
            return None
        return np.concatenate(prompts)
    if not kinds <= {list, tuple}:
        return None
    tokens = list(chain.from_iterable(prompts))
    try:
        ids = np.array(tokens)
    except (ValueError, OverflowError):  # lists of lists
        return None
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        return None
    # True is a number to numpy; where it might be one, the tokens themselves are looked at
    return None if len(ids) and ids.min() <= 1 and bool in set(map(type, tokens)) else ids


def _framed(ids: TokenIds, frame: Frame, bodies: Sequence[Pieces]) -> TokenIds:
    """Pieces of the ids, one or two of them in a sequence, with the special tokens around them."""
    edges = (frame.prefix, frame.suffix) if len(bodies) == 1 else (frame.prefix, frame.middle, frame.suffix)
    shape = (len(bodies[0].starts), len(edges) + len(bodies))
    starts, lengths = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)
    place = len(ids)
    for column, edge in enumerate(edges):
        starts[:, 2 * column], lengths[:, 2 * column] = place, len(edge)
        place += len(edge)
    for column, body in enumerate(bodies):
        starts[:, 2 * column + 1], lengths[:, 2 * column + 1] = body
    return gathered(np.concatenate((ids, *edges)), starts.ravel(), lengths.ravel())
