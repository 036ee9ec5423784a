"""The ids of texts as sequences that a model reads: special tokens around them, cut, padded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from cenote.errors import InputTooLong, Unsupported
from cenote.inputs.colbert_format import Side
from cenote.inputs.limits import Limits, too_many_characters
from cenote.inputs.pairs import cut, join
from cenote.inputs.template_truncation import Framed, fitted
from cenote.inputs.tokenized_inputs import Rendered
from cenote.inputs.tokenizer import TokenIds, Tokenizer, check_unicode
from cenote.protocol.requests import Tokenization

# what builds an input from the ids of the texts that were noted for it
Build = Callable[[dict[str, TokenIds]], Rendered]


class Sequences:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def fitting(self, text: str, how: Tokenization, limits: Limits, max_tokens: int | None) -> str:
        """The text, or as much of it as can matter: a huge one must not be tokenized only to be cut."""
        check_unicode(text)
        if max_tokens is None:
            most = limits.max_tokens * self.tokenizer.max_chars_per_token
            if limits.bounded and len(text) > most:
                raise InputTooLong(too_many_characters(limits, len(text), most), param="input_text", value=len(text))
            return text
        side = how.truncation_side or self.tokenizer.truncation_side
        return self.tokenizer.enough(text, max_tokens, side, lower_case=how.do_lower_case)

    def single(
        self, body: TokenIds, how: Tokenization, max_tokens: int | None, prompt: TokenIds | None, exact: bool
    ) -> Rendered:
        frame = self.tokenizer.single if how.add_special_tokens else self.tokenizer.single.bare
        total = len(body) + frame.num_tokens
        if max_tokens is not None and total > max_tokens and how.truncation_side is None:
            body = cut(body, max(0, max_tokens - frame.num_tokens), self.tokenizer.truncation_side)
        ids = np.concatenate((frame.prefix, body, frame.suffix)) if frame.num_tokens else body
        ids = self.padded(ids, how)
        if max_tokens is not None and len(ids) > max_tokens:  # an explicit side cuts special tokens as well
            ids = cut(ids, max_tokens, how.truncation_side or self.tokenizer.truncation_side)
        skip = 0 if prompt is None else len(prompt) + len(frame.prefix)
        if (how.truncation_side or self.tokenizer.truncation_side) == "left":
            skip -= max(0, total - len(ids))  # the prompt is what was cut first
        return Rendered(ids, len(ids), total, skip=max(0, min(skip, len(ids) - 1)), input_tokens_exact=exact)

    def pair(
        self, query: TokenIds, document: TokenIds, how: Tokenization, max_tokens: int | None, exact: bool
    ) -> Rendered:
        frame = self.tokenizer.pair if how.add_special_tokens else self.tokenizer.pair.bare
        side = how.truncation_side
        whole = max_tokens if side is None else None
        ids, second = join(frame, query, document, whole, self.tokenizer.truncation_side)
        ids = self.padded(ids, how)  # padding is of the type of what it follows
        second = second if frame.second_type else len(ids)
        total = len(query) + len(document) + frame.num_tokens
        if max_tokens is not None and len(ids) > max_tokens:
            lost = len(ids) - max_tokens if side == "left" else 0
            ids = cut(ids, max_tokens, side or self.tokenizer.truncation_side)
            second = min(max(second - lost, 0), len(ids))
        return Rendered(ids, second, total, input_tokens_exact=exact)

    def sliced(self, given: TokenIds, how: Tokenization, max_tokens: int | None) -> Rendered:
        ids = self.padded(given, how)
        if max_tokens is not None:
            ids = cut(ids, max_tokens, how.truncation_side or self.tokenizer.truncation_side)
        return Rendered(ids, len(ids), len(given))

    def padded(self, ids: TokenIds, how: Tokenization) -> TokenIds:
        if how.pad_prompt_tokens is None or len(ids) >= how.pad_prompt_tokens:
            return ids
        if self.tokenizer.pad_token_id is None:
            raise Unsupported("padding was asked for, but the tokenizer has no padding token", param="padding")
        return np.pad(ids, (0, how.pad_prompt_tokens - len(ids)), constant_values=self.tokenizer.pad_token_id)

    def marked(self, body: TokenIds, side: Side, how: Tokenization, limit: int, exact: bool) -> Rendered:
        frame, cut_side = self.tokenizer.single, how.truncation_side or self.tokenizer.truncation_side
        num_added = frame.num_tokens + side.num_markers
        kept = cut(body, max(0, limit - num_added), cut_side)
        ids = self.padded(side.marked(np.concatenate((frame.prefix, kept, frame.suffix))), how)
        expanded = side.expanded(cut(ids, limit, cut_side), limit)
        return Rendered(
            expanded.token_ids,
            len(expanded.token_ids),
            len(body) + num_added,
            input_tokens_exact=exact,
            attended=expanded.attended,
            kept=expanded.kept,
        )

    def framed(
        self, framed: Framed, how: Tokenization, limits: Limits, max_tokens: int | None, texts: dict[str, None]
    ) -> Build:
        """A prompt that is cut inside, where its texts are: a model reads the answer off the end of its frame."""
        query, *documents = (self.fitting(text, how, limits, max_tokens) for text in (framed.query, *framed.documents))
        given = len(framed.query) + sum(map(len, framed.documents))
        exact = len(query) + sum(map(len, documents)) == given
        framed = replace(framed, query=query, documents=documents)
        whole = framed.write(query, documents)
        if max_tokens is None:
            self.fitting(whole, how, limits, None)
        else:
            padded = how.pad_prompt_tokens
            how = replace(how, pad_prompt_tokens=None if padded is None else min(padded, max_tokens))
        texts[whole] = None
        frame = self.tokenizer.single if how.add_special_tokens else self.tokenizer.single.bare

        def encode(text: str) -> TokenIds:
            return self.tokenizer.encode([text], lower_case=how.do_lower_case)[0]

        def build(ids: dict[str, TokenIds]) -> Rendered:
            body, total = ids[whole], len(ids[whole]) + frame.num_tokens
            if max_tokens is not None and total > max_tokens:
                side = how.truncation_side or self.tokenizer.truncation_side
                body = fitted(framed, encode, max_tokens - frame.num_tokens, self.tokenizer, side)
            rendered = self.single(body, how, None, None, exact)
            rendered.num_input_tokens = total
            return rendered

        return build
