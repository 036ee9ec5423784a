"""What reads the inputs of a loaded model: its tokenizer, and the renderer that does everything its files ask for."""

from __future__ import annotations

import logging

from cenote.config import EngineConfig
from cenote.engine.roles import sides
from cenote.inputs.chat import ChatSettings
from cenote.inputs.instructions import Instruction
from cenote.inputs.pairs import reads_both
from cenote.inputs.render import Renderer
from cenote.inputs.tokenizer import Tokenizer
from cenote.loading.load import LoadedModel
from cenote.request import ScoreTemplate

logger = logging.getLogger("cenote")


def tokenizer_of(model: LoadedModel) -> Tokenizer:
    return Tokenizer(
        model.tokenizer.tokenizer,
        truncation_side=model.tokenizer.truncation_side,
        pad_token_id=model.tokenizer.pad_token_id,
        lower_case=model.description.sentence_transformers.lower_case,
        token_types=model.tokenizer.token_types,
        clean_up=model.tokenizer.clean_up,
    )


def renderer_of(model: LoadedModel, config: EngineConfig, tokenizer: Tokenizer, chat_template: str | None) -> Renderer:
    description = model.description
    architecture = description.architecture
    return Renderer(
        tokenizer,
        vocab_size=architecture.backbone.vocab_size,
        hidden_size=architecture.backbone.hidden_size,
        pairs_with_separator=bool(description.config.get("use_sep_token", architecture.pairs_with_separator)),
        score_template=_score_template(model),
        prompt_embeds=config.enable_prompt_embeds,
        skip_prompt=not description.plan.include_prompt,
        chat=ChatSettings(
            server_template=chat_template,
            tokenizer_template=model.tokenizer.chat_template,
            content_format=config.chat_template_content_format,
            template_kwargs=config.default_chat_template_kwargs or {},
            special_tokens=model.tokenizer.special_tokens,
        ),
        sides=sides(model),
        instruction=_instruction(model, tokenizer),
    )


def _score_template(model: LoadedModel) -> ScoreTemplate | None:
    """What joins query and document, told to whoever looks after the server."""
    description = model.description
    if description.score_template is None or description.kind.value != "sequence" or description.num_labels > 1:
        return None
    template, source = description.score_template.value, description.score_template.source
    if template.has_system and not reads_both(template, model.tokenizer.special_tokens):
        logger.warning(
            "%s sends query and document through the chat template, which drops them; they are joined without it. "
            "--score-template gives another",
            source,
        )
        return None
    logger.info("Query and document are joined by the template %s (from %s)", template.name, source)
    return template


def _instruction(model: LoadedModel, tokenizer: Tokenizer) -> Instruction | None:
    mark, first = model.description.architecture.pooled_after, model.tokenizer.special_tokens.get("bos_token")
    if mark is None:
        return None
    return Instruction(tokenizer, mark, None if first is None else model.tokenizer.tokenizer.token_to_id(first))
