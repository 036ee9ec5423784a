"""Build token sequences from the ids of texts: add special tokens, truncate, pad."""

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

# builds an input from the ids of the texts that its plan has collected
BuildFn = Callable[[dict[str, TokenIds]], TokenizedInput]


class SequenceBuilder:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def crop_text(self, text: str, tokenization: TokenizationParams, limits: Limits, max_tokens: int | None) -> str:
        """Return the part of a text that can affect the result, so that a huge text is not tokenized in full."""
        check_unicode(text)
        if max_tokens is None:
            max_chars = limits.max_tokens * self.tokenizer.max_chars_per_token
            if limits.is_bounded and len(text) > max_chars:
                message = too_many_chars_message(limits, len(text), max_chars)
                raise InputTooLong(message, param="input_text", value=len(text))
            return text
        truncation_side = tokenization.truncation_side or self.tokenizer.truncation_side
        return self.tokenizer.crop_text(text, max_tokens, truncation_side, lower_case=tokenization.do_lower_case)

    def build_single(
        self,
        text_ids: TokenIds,
        tokenization: TokenizationParams,
        max_tokens: int | None,
        prompt_ids: TokenIds | None,
        is_exact: bool,
    ) -> TokenizedInput:
        template = (
            self.tokenizer.single_template
            if tokenization.add_special_tokens
            else self.tokenizer.single_template.without_special_tokens
        )
        total = len(text_ids) + template.num_tokens
        side = tokenization.truncation_side or self.tokenizer.truncation_side
        if max_tokens is not None and total > max_tokens and not tokenization.truncates_special_tokens:
            text_ids = truncate_ids(text_ids, max(0, max_tokens - template.num_tokens), side)
        ids = np.concatenate((template.prefix, text_ids, template.suffix)) if template.num_tokens else text_ids
        ids = self.pad(ids, tokenization)
        if max_tokens is not None and len(ids) > max_tokens:
            ids = truncate_ids(ids, max_tokens, side)
        num_unpooled = 0 if prompt_ids is None else len(prompt_ids) + len(template.prefix)
        if side == "left":
            num_unpooled -= max(0, total - len(ids))  # truncation on the left removes the prompt first
        num_unpooled = max(0, min(num_unpooled, len(ids) - 1))
        return TokenizedInput(ids, len(ids), total, num_unpooled=num_unpooled, is_input_count_exact=is_exact)

    def build_pair(
        self,
        query_ids: TokenIds,
        document_ids: TokenIds,
        tokenization: TokenizationParams,
        max_tokens: int | None,
        is_exact: bool,
    ) -> TokenizedInput:
        template = (
            self.tokenizer.pair_template
            if tokenization.add_special_tokens
            else self.tokenizer.pair_template.without_special_tokens
        )
        side = tokenization.truncation_side or self.tokenizer.truncation_side
        # truncation that keeps the special tokens is longest-first
        joint_max_tokens = None if tokenization.truncates_special_tokens else max_tokens
        ids, type1_start = join_ids(template, query_ids, document_ids, joint_max_tokens, side)
        ids = self.pad(ids, tokenization)  # padding has the token type of the last token
        type1_start = type1_start if template.second_type_id else len(ids)
        total = len(query_ids) + len(document_ids) + template.num_tokens
        if max_tokens is not None and len(ids) > max_tokens:
            num_removed = len(ids) - max_tokens if side == "left" else 0
            ids = truncate_ids(ids, max_tokens, side)
            type1_start = min(max(type1_start - num_removed, 0), len(ids))
        return TokenizedInput(ids, type1_start, total, is_input_count_exact=is_exact)

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
            raise Unsupported("padding was requested, but the tokenizer has no padding token", param="padding")
        return np.pad(ids, (0, tokenization.pad_prompt_tokens - len(ids)), constant_values=self.tokenizer.pad_token_id)

    def build_role(
        self,
        text_ids: TokenIds,
        role_format: RoleFormat,
        tokenization: TokenizationParams,
        max_tokens: int,
        is_exact: bool,
    ) -> TokenizedInput:
        template = self.tokenizer.single_template
        truncation_side = tokenization.truncation_side or self.tokenizer.truncation_side
        num_added = template.num_tokens + role_format.num_added
        kept = truncate_ids(text_ids, max(0, max_tokens - num_added), truncation_side)
        marked = role_format.insert_marker(np.concatenate((template.prefix, kept, template.suffix)))
        ids = self.pad(role_format.append_suffix(marked), tokenization)
        expanded = role_format.expand(truncate_ids(ids, max_tokens, truncation_side), max_tokens)
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
        """Plan a templated prompt, whose texts are truncated and not its end: the model predicts at the last token."""
        query, *documents = (
            self.crop_text(text, tokenization, limits, max_tokens) for text in (templated.query, *templated.documents)
        )
        num_chars = len(templated.query) + sum(map(len, templated.documents))
        is_exact = len(query) + sum(map(len, documents)) == num_chars
        templated = replace(templated, query=query, documents=documents)
        prompt = templated.render(query, documents)
        if max_tokens is None:
            self.crop_text(prompt, tokenization, limits, None)  # checks the length
        else:
            padded = tokenization.pad_prompt_tokens
            tokenization = replace(tokenization, pad_prompt_tokens=None if padded is None else min(padded, max_tokens))
        texts[prompt] = None
        template = (
            self.tokenizer.single_template
            if tokenization.add_special_tokens
            else self.tokenizer.single_template.without_special_tokens
        )

        def encode(text: str) -> TokenIds:
            return self.tokenizer.encode([text], lower_case=tokenization.do_lower_case)[0]

        def build(ids: dict[str, TokenIds]) -> TokenizedInput:
            prompt_ids, total = ids[prompt], len(ids[prompt]) + template.num_tokens
            if max_tokens is not None and total > max_tokens:
                side = tokenization.truncation_side or self.tokenizer.truncation_side
                prompt_ids = truncate_to_fit(templated, encode, max_tokens - template.num_tokens, self.tokenizer, side)
            tokenized = self.build_single(prompt_ids, tokenization, None, None, is_exact)
            tokenized.num_input_tokens = total
            return tokenized

        return build
