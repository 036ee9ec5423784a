"""Many plain inputs of one kind, rendered at once in arrays; where one of them needs a closer look, none is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from cenote.errors import BadRequest
from cenote.inputs.limits import Limits
from cenote.inputs.tokenized_inputs import Int64Array, TokenizedInputs, gather_spans
from cenote.inputs.tokenizer import MAX_TYPICAL_CHARS_PER_TOKEN, SpecialTokensTemplate, TokenIds, Tokenizer
from cenote.protocol.input_types import TextPair
from cenote.protocol.params import TokenizationParams, TruncationSide


class Spans(NamedTuple):
    """Parts of an array of tokens, one for each input."""

    starts: Int64Array
    lengths: Int64Array

    def truncate(self, max_length: int | None, truncation_side: TruncationSide) -> Spans:
        if max_length is None or self.lengths.max() <= max_length:
            return self
        kept = np.minimum(self.lengths, max(0, max_length))
        return Spans(self.starts if truncation_side == "right" else self.starts + self.lengths - kept, kept)


class BulkRenderer:
    """How plain inputs of a slice are read. Each way answers None where not all of them are as usual."""

    def __init__(
        self, tokenizer: Tokenizer, tokenization: TokenizationParams, limits: Limits, max_tokens: int | None
    ) -> None:
        self.tokenizer = tokenizer
        self.tokenization = tokenization
        self.limits = limits
        self.max_tokens = max_tokens  # what inputs are cut to
        self.truncation_side = tokenization.truncation_side or tokenizer.truncation_side

    def render_token_ids(self, prompts: Sequence[Any], vocab_size: int) -> TokenizedInputs | None:
        ids = _flatten_token_ids(prompts)
        if ids is None or not len(ids) or ids.min() < 0 or ids.max() >= vocab_size:
            return None
        lengths = np.fromiter(map(len, prompts), dtype=np.int64, count=len(prompts))
        whole = Spans(np.cumsum(lengths) - lengths, lengths)
        kept = whole.truncate(self.max_tokens, self.truncation_side)
        ids = ids.astype(np.int32, copy=False)
        return TokenizedInputs.from_ids(ids if kept is whole else gather_spans(ids, *kept), kept.lengths, lengths)

    def render_texts(
        self, inputs: Sequence[str], prompt: str | None, *, exclude_prompt: bool
    ) -> TokenizedInputs | None:
        frame = (
            self.tokenizer.single_template
            if self.tokenization.add_special_tokens
            else self.tokenizer.single_template.without_special_tokens
        )
        texts = [prompt + text for text in inputs] if prompt else inputs
        if (found := self._encode_texts(texts)) is None:
            return None
        ids, pieces = found
        total = pieces.lengths + frame.num_tokens
        if not self._keeps_special_tokens(total, frame):
            return None
        kept = pieces.truncate(
            None if self.max_tokens is None else self.max_tokens - frame.num_tokens, self.truncation_side
        )
        size = kept.lengths + frame.num_tokens
        strip = TokenizedInputs.from_ids(_add_special_tokens(ids, frame, [kept]), size, total)
        if prompt and exclude_prompt:
            (start,) = self.tokenizer.encode([prompt], lower_case=self.tokenization.do_lower_case)
            lost = total - size if self.truncation_side == "left" else 0  # the prompt is what was cut first
            strip.metadata["num_unpooled"] = np.clip(len(start) + len(frame.prefix) - lost, 0, np.maximum(size - 1, 0))
        return strip

    def render_pairs(self, pairs: Sequence[TextPair]) -> TokenizedInputs | None:
        frame = (
            self.tokenizer.pair_template
            if self.tokenization.add_special_tokens
            else self.tokenizer.pair_template.without_special_tokens
        )
        rows: dict[str, int] = {}  # each text is tokenized once
        queries = [rows.setdefault(pair.query, len(rows)) for pair in pairs]
        documents = [rows.setdefault(pair.document, len(rows)) for pair in pairs]
        if (found := self._encode_texts(list(rows))) is None:
            return None
        ids, pieces = found
        query, document = (Spans(pieces.starts[side], pieces.lengths[side]) for side in (queries, documents))
        total = query.lengths + document.lengths + frame.num_tokens
        if self.max_tokens is not None and total.max() > self.max_tokens:
            return None
        strip = TokenizedInputs.from_ids(_add_special_tokens(ids, frame, [query, document]), total, total)
        if frame.second_type_id:
            strip.metadata["type1_start"] = len(frame.prefix) + query.lengths + len(frame.separator)
        return strip

    def _encode_texts(self, texts: Sequence[str]) -> tuple[TokenIds, Spans] | None:
        longest, per_token = max(map(len, texts)), self.tokenizer.max_chars_per_token
        if self.max_tokens is not None:
            per_token = min(per_token, MAX_TYPICAL_CHARS_PER_TOKEN)
        most = self.limits.max_tokens if self.max_tokens is None else self.max_tokens
        if longest > most * per_token and (self.limits.is_bounded or self.max_tokens is not None):
            return None  # a huge text is cut or refused before it is tokenized
        try:
            ids, offsets = self.tokenizer.encode_flat(texts, lower_case=self.tokenization.do_lower_case)
        except BadRequest:
            return None
        return ids, Spans(offsets[:-1], np.diff(offsets))

    def _keeps_special_tokens(self, total: Int64Array, template: SpecialTokensTemplate) -> bool:
        """Whether special tokens stay whole: an explicit side cuts them as well, and so does no room for them."""
        if self.max_tokens is None or total.max() <= self.max_tokens:
            return True
        return self.tokenization.truncation_side is None and template.num_tokens <= self.max_tokens


def _flatten_token_ids(prompts: Sequence[Any]) -> np.ndarray[Any, Any] | None:
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


def _add_special_tokens(ids: TokenIds, template: SpecialTokensTemplate, spans: Sequence[Spans]) -> TokenIds:
    """Pieces of the ids, one or two of them in a sequence, with the special tokens around them."""
    edges = (
        (template.prefix, template.suffix)
        if len(spans) == 1
        else (template.prefix, template.separator, template.suffix)
    )
    shape = (len(spans[0].starts), len(edges) + len(spans))
    starts, lengths = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)
    place = len(ids)
    for column, edge in enumerate(edges):
        starts[:, 2 * column], lengths[:, 2 * column] = place, len(edge)
        place += len(edge)
    for column, body in enumerate(spans):
        starts[:, 2 * column + 1], lengths[:, 2 * column + 1] = body
    return gather_spans(np.concatenate((ids, *edges)), starts.ravel(), lengths.ravel())
