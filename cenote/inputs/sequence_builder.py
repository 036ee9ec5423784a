"""Build token sequences from the ids of texts: add special tokens, truncate, pad."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

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


class RenderOptions(NamedTuple):
    """Options that all inputs of one `render` call share."""

    tokenization: TokenizationParams
    limits: Limits
    max_tokens: int | None = None  # truncation length; None: no truncation
    prompt: str | None = None  # prepended to texts
    role_format: RoleFormat | None = None  # query or document format of ColBERT models


class SequenceBuilder:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def crop_text(self, text: str, options: RenderOptions) -> str:
        """Return the part of a text that can affect the result, so that a huge text is not tokenized in full."""
        check_unicode(text)
        limits, max_tokens, tokenization = options.limits, options.max_tokens, options.tokenization
        if max_tokens is not None:
            side = self.tokenizer.find_truncation_side(tokenization)
            return self.tokenizer.crop_text(text, max_tokens, side, lower_case=tokenization.do_lower_case)
        max_chars = limits.max_tokens * self.tokenizer.max_chars_per_token
        if limits.is_bounded and len(text) > max_chars:
            message = too_many_chars_message(limits, len(text), max_chars)
            raise InputTooLong(message, param="input_text", value=len(text))
        return text

    def build_single(
        self, text_ids: TokenIds, options: RenderOptions, prompt_ids: TokenIds | None = None, *, is_exact: bool = True
    ) -> TokenizedInput:
        tokenization, max_tokens = options.tokenization, options.max_tokens
        template, side = self.tokenizer.find_template(tokenization), self.tokenizer.find_truncation_side(tokenization)
        total = len(text_ids) + template.num_tokens
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
        self, query_ids: TokenIds, document_ids: TokenIds, options: RenderOptions, *, is_exact: bool
    ) -> TokenizedInput:
        tokenization, max_tokens = options.tokenization, options.max_tokens
        template = self.tokenizer.find_template(tokenization, is_pair=True)
        side = self.tokenizer.find_truncation_side(tokenization)
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

    def build_from_ids(self, token_ids: TokenIds, options: RenderOptions) -> TokenizedInput:
        ids = self.pad(token_ids, options.tokenization)
        if options.max_tokens is not None:
            side = self.tokenizer.find_truncation_side(options.tokenization)
            ids = truncate_ids(ids, options.max_tokens, side)
        return TokenizedInput(ids, len(ids), len(token_ids))

    def pad(self, ids: TokenIds, tokenization: TokenizationParams) -> TokenIds:
        if tokenization.pad_prompt_tokens is None or len(ids) >= tokenization.pad_prompt_tokens:
            return ids
        if self.tokenizer.pad_token_id is None:
            raise Unsupported("padding was requested, but the tokenizer has no padding token", param="padding")
        return np.pad(ids, (0, tokenization.pad_prompt_tokens - len(ids)), constant_values=self.tokenizer.pad_token_id)

    def build_role(
        self, text_ids: TokenIds, role_format: RoleFormat, options: RenderOptions, max_tokens: int, *, is_exact: bool
    ) -> TokenizedInput:
        template = self.tokenizer.single_template
        side = self.tokenizer.find_truncation_side(options.tokenization)
        num_added = template.num_tokens + role_format.num_added
        kept = truncate_ids(text_ids, max(0, max_tokens - num_added), side)
        marked = role_format.insert_marker(np.concatenate((template.prefix, kept, template.suffix)))
        ids = self.pad(role_format.append_suffix(marked), options.tokenization)
        expanded = role_format.expand(truncate_ids(ids, max_tokens, side), max_tokens)
        return TokenizedInput(
            expanded.token_ids,
            len(expanded.token_ids),
            len(text_ids) + num_added,
            is_input_count_exact=is_exact,
            attended_len=expanded.attended_len,
            row_mask=expanded.row_mask,
        )

    def build_templated(self, templated: TemplatedTexts, options: RenderOptions, texts: dict[str, None]) -> BuildFn:
        """Plan a templated prompt, whose texts are truncated and not its end: the model predicts at the last token."""
        query, *documents = (self.crop_text(text, options) for text in (templated.query, *templated.documents))
        num_chars = len(templated.query) + sum(map(len, templated.documents))
        is_exact = len(query) + sum(map(len, documents)) == num_chars
        templated = replace(templated, query=query, documents=documents)
        prompt = templated.render(query, documents)
        tokenization, max_tokens = options.tokenization, options.max_tokens
        if max_tokens is None:
            self.crop_text(prompt, options)  # checks the length
        elif (padded := tokenization.pad_prompt_tokens) is not None:
            tokenization = replace(tokenization, pad_prompt_tokens=min(padded, max_tokens))
        texts[prompt] = None
        num_special = self.tokenizer.find_template(tokenization).num_tokens
        whole = options._replace(tokenization=tokenization, max_tokens=None)

        def encode(text: str) -> TokenIds:
            return self.tokenizer.encode([text], lower_case=tokenization.do_lower_case)[0]

        def build(ids: dict[str, TokenIds]) -> TokenizedInput:
            prompt_ids, total = ids[prompt], len(ids[prompt]) + num_special
            if max_tokens is not None and total > max_tokens:
                side = self.tokenizer.find_truncation_side(tokenization)
                prompt_ids = truncate_to_fit(templated, encode, max_tokens - num_special, self.tokenizer, side)
            tokenized = self.build_single(prompt_ids, whole, is_exact=is_exact)
            tokenized.num_input_tokens = total
            return tokenized

        return build
