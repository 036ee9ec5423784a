"""RendererSettings: everything about a model that rendering inputs needs, as plain values; imports no torch.

The engine sends them to its front-ends, which then tokenize with the same code and the same results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import tokenizers

from cenote.inputs.chat import ChatSettings
from cenote.inputs.colbert_format import RoleFormat
from cenote.inputs.images.multimodal_processor import MultimodalSettings
from cenote.inputs.instruction_mask import InstructionMask, PromptEnd
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
        return Tokenizer(raw, **asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class RendererSettings:
    """How a model reads its inputs."""

    vocab_size: int
    hidden_size: int
    has_pair_separator: bool = True
    score_template: ScoreTemplate | None = None  # for pairs without a template of the request
    pair_lengths: PairLengths | None = None  # of models whose encoder reads the document, and whose decoder the query
    pair_suffix_ids: tuple[int, ...] = ()  # appended to a rendered score template
    enable_prompt_embeds: bool = False
    exclude_prompt: bool = False
    chat_settings: ChatSettings = field(default_factory=ChatSettings)
    role_formats: Mapping[Role, RoleFormat] = field(default_factory=dict)  # of queries and of documents, if they differ
    pooling_start_token: str | None = None  # of an InstructionMask
    bos_token_id: int | None = None
    prompt_end: str | None = None  # of a PromptEnd
    padded_length: int | None = None  # of models trained on padded texts, unless a request sets another
    accepts_empty: bool = False  # an input without tokens has the result zero
    text_format: TextFormat | None = None  # of models whose code writes texts into a format of its own
    architecture: str = "this model"  # named in errors
    multimodal: MultimodalSettings | None = None  # None: text only
    reads_tensors: bool = False  # and nothing else

    def make_instruction_mask(self, tokenizer: Tokenizer) -> InstructionMask | PromptEnd | None:
        """Return what finds the end of the part of a prompt that is not pooled; None for most models."""
        if self.prompt_end is not None:
            return PromptEnd(tokenizer, self.prompt_end)
        if self.pooling_start_token is None:
            return None
        return InstructionMask(tokenizer, self.pooling_start_token, self.bos_token_id)
