"""RendererSettings: everything about a model that rendering inputs needs, as plain values; imports no torch.

The engine sends them to its front-ends, which then tokenize with the same code and the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tokenizers

from cenote.inputs.chat import ChatSettings
from cenote.inputs.colbert_format import RoleFormat
from cenote.inputs.images.multimodal_processor import MultimodalProcessor, MultimodalSettings
from cenote.inputs.instruction_mask import InstructionMask, PromptEnd
from cenote.inputs.renderer import Renderer
from cenote.inputs.tokenizer import Tokenizer
from cenote.models.text_format import PairLengths, TextFormat
from cenote.protocol.input_types import ScoreTemplate
from cenote.protocol.params import Role, TruncationSide


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSettings:
    """How a tokenizer is used, besides its own file."""

    truncation_side: TruncationSide = "right"
    pad_token_id: int | None = None
    lower_case: bool = False
    has_token_types: bool = True
    clean_up: bool = False

    def make_tokenizer(self, raw: tokenizers.Tokenizer) -> Tokenizer:
        return Tokenizer(
            raw,
            truncation_side=self.truncation_side,
            pad_token_id=self.pad_token_id,
            lower_case=self.lower_case,
            has_token_types=self.has_token_types,
            clean_up=self.clean_up,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RendererSettings:
    """The arguments of a Renderer; see InputPlanner for their meaning."""

    vocab_size: int
    hidden_size: int
    has_pair_separator: bool = True
    score_template: ScoreTemplate | None = None
    pair_lengths: PairLengths | None = None
    pair_suffix_ids: tuple[int, ...] = ()
    enable_prompt_embeds: bool = False
    exclude_prompt: bool = False
    chat_settings: ChatSettings = field(default_factory=ChatSettings)
    role_formats: Mapping[Role, RoleFormat] = field(default_factory=dict)
    pooling_start_token: str | None = None  # of an InstructionMask
    bos_token_id: int | None = None
    prompt_end: str | None = None  # of a PromptEnd
    padded_length: int | None = None
    accepts_empty: bool = False
    text_format: TextFormat | None = None
    architecture: str = "this model"
    multimodal: MultimodalSettings | None = None  # None: text only
    reads_tensors: bool = False  # and nothing else

    def make_renderer(
        self,
        tokenizer: Tokenizer,
        multimodal: MultimodalProcessor | None = None,
        check_tensors: Callable[[Mapping[str, Any]], None] = lambda tensors: None,
    ) -> Renderer:
        """Return the renderer; `multimodal`: made of the settings of that name, with a loader."""
        return Renderer(
            tokenizer,
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            has_pair_separator=self.has_pair_separator,
            score_template=self.score_template,
            pair_lengths=self.pair_lengths,
            pair_suffix_ids=self.pair_suffix_ids,
            enable_prompt_embeds=self.enable_prompt_embeds,
            exclude_prompt=self.exclude_prompt,
            chat_settings=self.chat_settings,
            role_formats=self.role_formats,
            instruction_mask=self._make_instruction_mask(tokenizer),
            padded_length=self.padded_length,
            accepts_empty=self.accepts_empty,
            text_format=self.text_format,
            architecture=self.architecture,
            multimodal=multimodal,
            check_tensors=check_tensors if self.reads_tensors else None,
        )

    def _make_instruction_mask(self, tokenizer: Tokenizer) -> InstructionMask | PromptEnd | None:
        if self.prompt_end is not None:
            return PromptEnd(tokenizer, self.prompt_end)
        if self.pooling_start_token is None:
            return None
        return InstructionMask(tokenizer, self.pooling_start_token, self.bos_token_id)
