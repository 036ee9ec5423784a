"""Render many inputs of one simple type at once with array operations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from cenote.errors import BadRequest
from cenote.inputs.limits import Limits
from cenote.inputs.tokenized_inputs import Int64Array, PlainInput, TokenizedInputs, gather_spans
from cenote.inputs.tokenizer import (
    MAX_TYPICAL_CHARS_PER_TOKEN,
    FlatEncoding,
    SpecialTokensTemplate,
    TokenIds,
    Tokenizer,
)
from cenote.protocol.input_types import TextPair
from cenote.protocol.params import TokenizationParams, TruncationSide


class Spans(NamedTuple):
    """One contiguous range per input in a flat array of token ids."""

    starts: Int64Array
    lengths: Int64Array

    @classmethod
    def between(cls, offsets: Int64Array) -> Spans:
        return cls(offsets[:-1], np.diff(offsets))

    def truncate(self, max_length: int | None, truncation_side: TruncationSide) -> Spans:
        if max_length is None or self.lengths.max() <= max_length:
            return self
        kept = np.minimum(self.lengths, max(0, max_length))
        return Spans(self.starts if truncation_side == "right" else self.starts + self.lengths - kept, kept)


class BulkRenderer:
    """Render texts, pairs or token ids in bulk.

    Each method returns None if any input needs individual treatment (errors, huge texts, unusual truncation); the
    caller then renders all of them individually.
    """

    def __init__(
        self, tokenizer: Tokenizer, tokenization: TokenizationParams, limits: Limits, max_tokens: int | None
    ) -> None:
        self.tokenizer = tokenizer
        self.tokenization = tokenization
        self.limits = limits
        self.max_tokens = max_tokens  # truncation length; None: no truncation
        self.truncation_side = tokenizer.find_truncation_side(tokenization)

    def render_token_ids(self, prompts: Sequence[Any], vocab_size: int) -> TokenizedInputs | None:
        ids = _flatten_token_ids(prompts)
        if ids is None or not len(ids) or ids.min() < 0 or ids.max() >= vocab_size:
            return None
        lengths = np.fromiter(map(len, prompts), dtype=np.int64, count=len(prompts))
        full = Spans(np.cumsum(lengths) - lengths, lengths)
        kept = full.truncate(self.max_tokens, self.truncation_side)
        ids = ids.astype(np.int32, copy=False)
        return TokenizedInputs.from_ids(ids if kept is full else gather_spans(ids, *kept), kept.lengths, lengths)

    def render_texts(
        self, inputs: Sequence[str], prompt: str | None, *, exclude_prompt: bool
    ) -> TokenizedInputs | None:
        template = self.tokenizer.find_template(self.tokenization)
        texts = [prompt + text for text in inputs] if prompt else inputs
        if (encoded := self._encode_flat(texts)) is None:
            return None
        ids, offsets = encoded
        is_prompt_pooled = not (prompt and exclude_prompt)
        if (
            len(texts) == 1
            and is_prompt_pooled
            and (self.max_tokens is None or len(ids) + template.num_tokens <= self.max_tokens)
        ):
            return PlainInput(np.concatenate((template.prefix, ids, template.suffix)))
        spans = Spans.between(offsets)
        total = spans.lengths + template.num_tokens
        if not self._keeps_special_tokens(total, template):
            return None
        kept = spans.truncate(
            None if self.max_tokens is None else self.max_tokens - template.num_tokens, self.truncation_side
        )
        lengths = kept.lengths + template.num_tokens
        rendered = TokenizedInputs.from_ids(_add_special_tokens(ids, template, [kept]), lengths, total)
        if prompt and not is_prompt_pooled:
            (prompt_ids,) = self.tokenizer.encode([prompt], lower_case=self.tokenization.do_lower_case)
            # truncation on the left removes the prompt first
            num_removed = total - lengths if self.truncation_side == "left" else 0
            rendered.metadata["num_unpooled"] = np.clip(
                len(prompt_ids) + len(template.prefix) - num_removed, 0, np.maximum(lengths - 1, 0)
            )
        return rendered

    def render_pairs(self, pairs: Sequence[TextPair]) -> TokenizedInputs | None:
        template = self.tokenizer.find_template(self.tokenization, is_pair=True)
        indices_by_text: dict[str, int] = {}  # text -> index; each text is tokenized once
        queries = [indices_by_text.setdefault(pair.query, len(indices_by_text)) for pair in pairs]
        documents = [indices_by_text.setdefault(pair.document, len(indices_by_text)) for pair in pairs]
        if (encoded := self._encode_flat(list(indices_by_text))) is None:
            return None
        ids, spans = encoded.ids, Spans.between(encoded.cu_seqlens)
        query, document = (Spans(spans.starts[indices], spans.lengths[indices]) for indices in (queries, documents))
        total = query.lengths + document.lengths + template.num_tokens
        if self.max_tokens is not None and total.max() > self.max_tokens:
            return None
        rendered = TokenizedInputs.from_ids(_add_special_tokens(ids, template, [query, document]), total, total)
        if template.second_type_id:
            rendered.metadata["type1_start"] = len(template.prefix) + query.lengths + len(template.separator)
        return rendered

    def _encode_flat(self, texts: Sequence[str]) -> FlatEncoding | None:
        num_chars, chars_per_token = max(map(len, texts)), self.tokenizer.max_chars_per_token
        if self.max_tokens is not None:
            chars_per_token = min(chars_per_token, MAX_TYPICAL_CHARS_PER_TOKEN)
        max_tokens = self.limits.max_tokens if self.max_tokens is None else self.max_tokens
        if num_chars > max_tokens * chars_per_token and (self.limits.is_bounded or self.max_tokens is not None):
            return None  # huge texts are cropped or refused before tokenization, individually
        try:
            return self.tokenizer.encode_flat(texts, lower_case=self.tokenization.do_lower_case)
        except BadRequest:
            return None

    def _keeps_special_tokens(self, total: Int64Array, template: SpecialTokensTemplate) -> bool:
        """Whether truncation keeps all special tokens: not if a side cuts them, nor if they exceed the limit."""
        if self.max_tokens is None or total.max() <= self.max_tokens:
            return True
        return not self.tokenization.truncates_special_tokens and template.num_tokens <= self.max_tokens


def _flatten_token_ids(prompts: Sequence[Any]) -> np.ndarray[Any, Any] | None:
    """Concatenate lists or arrays of token ids; None if any element is not an integer."""
    types = set(map(type, prompts))
    if types == {np.ndarray}:
        if any(ids.ndim != 1 or ids.dtype.kind not in "iu" for ids in prompts):
            return None
        return np.concatenate(prompts)
    if not types <= {list, tuple}:
        return None
    tokens = list(chain.from_iterable(prompts))
    try:
        ids = np.array(tokens)
    except (ValueError, OverflowError):  # lists of lists
        return None
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        return None
    # numpy converts True to 1: check the types of the elements if an id could be a bool
    return None if len(ids) and ids.min() <= 1 and bool in set(map(type, tokens)) else ids


def _add_special_tokens(ids: TokenIds, template: SpecialTokensTemplate, spans: Sequence[Spans]) -> TokenIds:
    """Gather one or two spans per sequence and put the special tokens of the template around them."""
    special_parts = (
        (template.prefix, template.suffix)
        if len(spans) == 1
        else (template.prefix, template.separator, template.suffix)
    )
    shape = (len(spans[0].starts), len(special_parts) + len(spans))
    starts, lengths = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)
    offset = len(ids)  # the special tokens are appended to the ids, to be gathered like the texts
    for column, part in enumerate(special_parts):
        starts[:, 2 * column], lengths[:, 2 * column] = offset, len(part)
        offset += len(part)
    for column, text_spans in enumerate(spans):
        starts[:, 2 * column + 1], lengths[:, 2 * column + 1] = text_spans
    return gather_spans(np.concatenate((ids, *special_parts)), starts.ravel(), lengths.ravel())
