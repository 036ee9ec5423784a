"""Render inputs of every type to token ids: prompts, templates, tokenization, truncation, padding and length checks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from cenote.errors import BadRequest, PoolingError, Unsupported, make_internal_error
from cenote.inputs.bulk_renderer import BulkRenderer
from cenote.inputs.input_planner import InputPlanner, TextSet
from cenote.inputs.limits import (
    UNLIMITED,
    Limits,
    check_length,
    resolve_padding_length,
    resolve_truncation_length,
)
from cenote.inputs.sequence_builder import BuildFn, RenderOptions
from cenote.inputs.tokenized_inputs import ONLY_INDEX, RenderResult, TokenizedInput, TokenizedInputs
from cenote.inputs.tokenizer import TokenIds
from cenote.protocol.input_types import TEXTS_ADVICE, Input, InvalidInput, MultimodalPair, TextPair
from cenote.protocol.params import Role, TokenizationParams

logger = logging.getLogger("cenote")

RenderSettings = tuple[TokenizationParams, Limits, str | None, Role | None]  # the last parameters of Renderer.render

# ids converted to Python integers at once, while no other thread runs
TO_LIST_IDS = 1 << 16


class Renderer(InputPlanner):
    """Render lists of inputs, in bulk where all of them are simple, otherwise each with its own plan."""

    def render(
        self,
        inputs: Sequence[Input],
        tokenization: TokenizationParams,
        limits: Limits,
        prompt: str | None = None,
        role: Role | None = None,
    ) -> RenderResult:
        """Render all inputs; the result of an input that fails is its error."""
        role_format = self.settings.role_formats.get(role or "document") if tokenization.add_special_tokens else None
        if self.settings.padded_length is not None and tokenization.pad_prompt_tokens is None:
            tokenization = replace(tokenization, pad_prompt_tokens=min(self.settings.padded_length, limits.max_tokens))
        try:
            max_tokens = resolve_truncation_length(tokenization, limits)
            if (padded := resolve_padding_length(tokenization, limits)) != tokenization.pad_prompt_tokens:
                tokenization = replace(tokenization, pad_prompt_tokens=padded)
        except PoolingError as error:
            return RenderResult.from_list([error] * len(inputs))
        options = RenderOptions(tokenization, limits, max_tokens, prompt, role_format)
        if (rendered := self._render_bulk(inputs, options)) is not None:
            return RenderResult(rendered, ONLY_INDEX if len(inputs) == 1 else np.arange(len(inputs)), {})
        return RenderResult.from_list(self._render_individually(inputs, options))

    def tokenize(self, item: Input, *, add_special_tokens: bool = True, max_tokens: int | None = None) -> list[int]:
        """Return the token ids of one input, without truncation; raise if they are more than `max_tokens`."""
        options = RenderOptions(TokenizationParams(add_special_tokens=add_special_tokens), UNLIMITED)
        texts = TextSet()
        build = self.plan_input(item, options, texts)
        ids = build(dict(zip(texts, self.tokenizer.encode(list(texts)), strict=True))).token_ids
        if max_tokens is not None and len(ids) > max_tokens:
            check_length(len(ids), Limits(max_tokens, "max_tokenize_tokens"))
        token_ids: list[int] = []
        for start in range(0, len(ids), TO_LIST_IDS):  # in parts, between which other threads can run
            token_ids += ids[start : start + TO_LIST_IDS].tolist()
        return token_ids

    def _render_bulk(self, inputs: Sequence[Any], options: RenderOptions) -> TokenizedInputs | None:
        """Render inputs of one simple type with array operations; None if that is not possible or not worthwhile."""
        tokenization, limits = options.tokenization, options.limits
        if len(inputs) == 1 and type(inputs[0]) is not str:
            return None
        if tokenization.pad_prompt_tokens is not None or self.instruction_mask is not None:
            return None
        if self.settings.reads_tensors or self.text_model is not None or self.decoder_pairs is not None:
            return None
        bulk = BulkRenderer(self.tokenizer, tokenization, limits, options.max_tokens)
        types = set(map(type, inputs))
        rendered: TokenizedInputs | None = None
        if types == {str}:
            if options.role_format is None and self.settings.text_format is None:
                rendered = bulk.render_texts(inputs, options.prompt, exclude_prompt=self.settings.exclude_prompt)
        elif types == {TextPair}:
            has_template = self.settings.score_template is not None or any(pair.template is not None for pair in inputs)
            if self.settings.has_pair_separator and not has_template and not any(pair.images for pair in inputs):
                rendered = bulk.render_pairs(inputs)
        else:
            rendered = bulk.render_token_ids(inputs, self.settings.vocab_size)
        # inputs that are empty, too long or out of vocabulary are rendered individually, which raises their errors
        if rendered is None:
            return None
        if len(inputs) == 1:  # as in most requests: no array operations on one number
            shortest = longest = len(rendered.token_ids)
        else:
            shortest, longest = rendered.lengths.min(), rendered.lengths.max()
        if not shortest and not self.settings.accepts_empty:
            return None
        too_long = limits.is_bounded and longest > limits.max_tokens
        vocab_size = self.settings.vocab_size
        out_of_vocab = self.tokenizer.max_token_id >= vocab_size and rendered.token_ids.max(initial=0) >= vocab_size
        return None if too_long or out_of_vocab else rendered

    def _render_individually(
        self, inputs: Sequence[Input], options: RenderOptions
    ) -> list[TokenizedInput | PoolingError]:
        plans: list[BuildFn | PoolingError] = []
        texts = TextSet()
        for item in inputs:
            try:
                self._check_is_pair(item)
                plans.append(self.plan_input(item, options, texts))
            except Exception as error:
                plans.append(_to_input_error(error))
        encoded = self.tokenizer.encode(list(texts), lower_case=options.tokenization.do_lower_case)
        ids_by_text = dict(zip(texts, encoded, strict=True))
        return [
            plan if isinstance(plan, PoolingError) else self._build_input(plan, ids_by_text, options.limits)
            for plan in plans
        ]

    def _check_is_pair(self, item: Input) -> None:
        if self.decoder_pairs is not None and not isinstance(item, TextPair | MultimodalPair | InvalidInput):
            raise Unsupported(
                f"{self.settings.architecture} scores a document, which its encoder reads, for a query, which its "
                "decoder reads; send both to score or rerank"
            )

    def _build_input(
        self, build: BuildFn, ids_by_text: dict[str, TokenIds], limits: Limits
    ) -> TokenizedInput | PoolingError:
        vocab_size = self.settings.vocab_size
        try:
            tokenized = build(ids_by_text)
            self._check_length(tokenized, limits)
            mask = self.instruction_mask
            if mask is not None and (tokenized.inputs_embeds is None or mask.is_required):
                tokenized.num_unpooled = mask.count_masked_tokens(tokenized.token_ids)
        except Exception as error:
            return _to_input_error(error)
        is_possible = self.tokenizer.max_token_id >= vocab_size
        if is_possible and (max_id := int(tokenized.token_ids.max(initial=0))) >= vocab_size:
            return BadRequest(
                f"Token id {max_id} is out of vocabulary: the model's embedding table ends at {vocab_size - 1}; "
                f"{TEXTS_ADVICE}"
            )
        return tokenized

    def _check_length(self, tokenized: TokenizedInput, limits: Limits) -> None:
        if tokenized.images is not None and self.multimodal is not None:
            if self.multimodal.image_processor.spec.single_modality_name is not None:
                return  # the vision tower fixes the length of an image; text limits do not apply
            if limits.is_chunked:  # only texts are chunked, an input with images is never split
                limits = Limits(self.multimodal.image_processor.max_tokens)
        if len(tokenized.token_ids) or not self.settings.accepts_empty:
            check_length(len(tokenized.token_ids), limits)


def render_isolated(renderer: Renderer, inputs: Sequence[Input], settings: RenderSettings) -> RenderResult:
    """Render inputs, perhaps of several requests: an unexpected error fails only the input that causes it."""
    try:
        return renderer.render(inputs, *settings)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # also panics of the tokenizers library, which are no subclass of Exception
        if len(inputs) > 1:
            return RenderResult.concat([render_isolated(renderer, [item], settings) for item in inputs])
        logger.exception("rendering failed")
        return RenderResult.from_list([make_internal_error("the input could not be read", error)])


def _to_input_error(error: Exception) -> PoolingError:
    """Return the error of one input, so that the other inputs, perhaps of other clients, are still rendered."""
    if isinstance(error, PoolingError):
        return error
    logger.error("an input could not be read", exc_info=error)
    return make_internal_error("the input could not be read", error)
