"""The ids of texts as sequences that a model reads: special tokens around them, cut, padded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from cenote.errors import InputTooLong, Unsupported
from cenote.inputs.colbert_format import RoleFormat
from cenote.inputs.limits import Limits, too_many_chars_message
from cenote.inputs.pairs import join_ids, truncate_ids
from cenote.inputs.template_truncation import TemplatedTexts, truncate_to_fit
from cenote.inputs.tokenized_inputs import TokenizedInput
from cenote.inputs.tokenizer import TokenIds, Tokenizer, check_unicode
from cenote.protocol.params import TokenizationParams

# what builds an input from the ids of the texts that were noted for it
BuildFn = Callable[[dict[str, TokenIds]], TokenizedInput]


class SequenceBuilder:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def crop_text(self, text: str, tokenization: TokenizationParams, limits: Limits, max_tokens: int | None) -> str:
        """The text, or as much of it as can matter: a huge one must not be tokenized only to be cut."""
        check_unicode(text)
        if max_tokens is None:
            most = limits.max_tokens * self.tokenizer.max_chars_per_token
            if limits.is_bounded and len(text) > most:
                raise InputTooLong(too_many_chars_message(limits, len(text), most), param="input_text", value=len(text))
            return text
        side = tokenization.truncation_side or self.tokenizer.truncation_side
        return self.tokenizer.crop_text(text, max_tokens, side, lower_case=tokenization.do_lower_case)

    def build_single(
        self,
        text_ids: TokenIds,
        tokenization: TokenizationParams,
        max_tokens: int | None,
        prompt_ids: TokenIds | None,
        is_exact: bool,
    ) -> TokenizedInput:
        frame = (
            self.tokenizer.single_template
            if tokenization.add_special_tokens
            else self.tokenizer.single_template.without_special_tokens
        )
        total = len(text_ids) + frame.num_tokens
        if max_tokens is not None and total > max_tokens and tokenization.truncation_side is None:
            text_ids = truncate_ids(text_ids, max(0, max_tokens - frame.num_tokens), self.tokenizer.truncation_side)
        ids = np.concatenate((frame.prefix, text_ids, frame.suffix)) if frame.num_tokens else text_ids
        ids = self.pad(ids, tokenization)
        if max_tokens is not None and len(ids) > max_tokens:  # an explicit side cuts special tokens as well
            ids = truncate_ids(ids, max_tokens, tokenization.truncation_side or self.tokenizer.truncation_side)
        skip = 0 if prompt_ids is None else len(prompt_ids) + len(frame.prefix)
        if (tokenization.truncation_side or self.tokenizer.truncation_side) == "left":
            skip -= max(0, total - len(ids))  # the prompt is what was cut first
        return TokenizedInput(
            ids, len(ids), total, num_unpooled=max(0, min(skip, len(ids) - 1)), is_input_count_exact=is_exact
        )

    def build_pair(
        self,
        query_ids: TokenIds,
        document_ids: TokenIds,
        tokenization: TokenizationParams,
        max_tokens: int | None,
        is_exact: bool,
    ) -> TokenizedInput:
        frame = (
            self.tokenizer.pair_template
            if tokenization.add_special_tokens
            else self.tokenizer.pair_template.without_special_tokens
        )
        side = tokenization.truncation_side
        whole = max_tokens if side is None else None
        ids, second = join_ids(frame, query_ids, document_ids, whole, self.tokenizer.truncation_side)
        ids = self.pad(ids, tokenization)  # padding is of the type of what it follows
        second = second if frame.second_type_id else len(ids)
        total = len(query_ids) + len(document_ids) + frame.num_tokens
        if max_tokens is not None and len(ids) > max_tokens:
            lost = len(ids) - max_tokens if side == "left" else 0
            ids = truncate_ids(ids, max_tokens, side or self.tokenizer.truncation_side)
            second = min(max(second - lost, 0), len(ids))
        return TokenizedInput(ids, second, total, is_input_count_exact=is_exact)

    def build_from_ids(
        self, token_ids: TokenIds, tokenization: TokenizationParams, max_tokens: int | None
    ) -> TokenizedInput:
        ids = self.pad(token_ids, tokenization)
        if max_tokens is not None:
            ids = truncate_ids(ids, max_tokens, tokenization.truncation_side or self.tokenizer.truncation_side)
        return TokenizedInput(ids, len(ids), len(token_ids))

    def pad(self, ids: TokenIds, tokenization: TokenizationParams) -> TokenIds:
        if tokenization.pad_prompt_tokens is None or len(ids) >= tokenization.pad_prompt_tokens:
            return ids
        if self.tokenizer.pad_token_id is None:
            raise Unsupported("padding was asked for, but the tokenizer has no padding token", param="padding")
        return np.pad(ids, (0, tokenization.pad_prompt_tokens - len(ids)), constant_values=self.tokenizer.pad_token_id)

    def build_role(
        self,
        text_ids: TokenIds,
        role_format: RoleFormat,
        tokenization: TokenizationParams,
        max_tokens: int,
        is_exact: bool,
    ) -> TokenizedInput:
        frame, cut_side = self.tokenizer.single_template, tokenization.truncation_side or self.tokenizer.truncation_side
        num_added = frame.num_tokens + role_format.num_markers
        kept = truncate_ids(text_ids, max(0, max_tokens - num_added), cut_side)
        ids = self.pad(role_format.insert_marker(np.concatenate((frame.prefix, kept, frame.suffix))), tokenization)
        expanded = role_format.expand(truncate_ids(ids, max_tokens, cut_side), max_tokens)
        return TokenizedInput(
            expanded.token_ids,
            len(expanded.token_ids),
            len(text_ids) + num_added,
            is_input_count_exact=is_exact,
            attended_len=expanded.attended_len,
            row_mask=expanded.row_mask,
        )

    def build_templated(
        self,
        templated: TemplatedTexts,
        tokenization: TokenizationParams,
        limits: Limits,
        max_tokens: int | None,
        texts: dict[str, None],
    ) -> BuildFn:
        """A prompt that is cut inside, where its texts are: a model reads the answer off the end of its frame."""
        query, *documents = (
            self.crop_text(text, tokenization, limits, max_tokens) for text in (templated.query, *templated.documents)
        )
        given = len(templated.query) + sum(map(len, templated.documents))
        exact = len(query) + sum(map(len, documents)) == given
        templated = replace(templated, query=query, documents=documents)
        whole = templated.render(query, documents)
        if max_tokens is None:
            self.crop_text(whole, tokenization, limits, None)
        else:
            padded = tokenization.pad_prompt_tokens
            tokenization = replace(tokenization, pad_prompt_tokens=None if padded is None else min(padded, max_tokens))
        texts[whole] = None
        frame = (
            self.tokenizer.single_template
            if tokenization.add_special_tokens
            else self.tokenizer.single_template.without_special_tokens
        )

        def encode(text: str) -> TokenIds:
            return self.tokenizer.encode([text], lower_case=tokenization.do_lower_case)[0]

        def build(ids: dict[str, TokenIds]) -> TokenizedInput:
            body, total = ids[whole], len(ids[whole]) + frame.num_tokens
            if max_tokens is not None and total > max_tokens:
                side = tokenization.truncation_side or self.tokenizer.truncation_side
                body = truncate_to_fit(templated, encode, max_tokens - frame.num_tokens, self.tokenizer, side)
            rendered = self.build_single(body, tokenization, None, None, exact)
            rendered.num_input_tokens = total
            return rendered

        return build
