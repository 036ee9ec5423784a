"""What reads the inputs of a loaded model: its tokenizer, and the renderer that does everything its files ask for."""

from __future__ import annotations

import logging

import PIL.Image

from cenote.config.engine import EngineConfig
from cenote.engine.preprocessing.colbert_formats import sides
from cenote.errors import BadRequest, InputTooLong, LoadError
from cenote.inputs.chat import ChatSettings
from cenote.inputs.images.image_processor import ImageReader, reader_of
from cenote.inputs.images.multimodal_processor import Seeing
from cenote.inputs.instruction_mask import Instruction
from cenote.inputs.media.loader import MediaLoader
from cenote.inputs.media.policy import MediaPolicy
from cenote.inputs.pairs import reads_both
from cenote.inputs.renderer import Renderer
from cenote.inputs.tokenizer import Tokenizer
from cenote.loading.load import LoadedModel
from cenote.loading.tensor_model import TensorModel
from cenote.protocol.input_types import ScoreTemplate

logger = logging.getLogger("cenote")

PLAIN_SIZE = (224, 224)  # pixels, in whole patches of all towers


def tokenizer_of(model: LoadedModel) -> Tokenizer:
    return Tokenizer(
        model.tokenizer.tokenizer,
        truncation_side=model.tokenizer.truncation_side,
        pad_token_id=model.tokenizer.pad_token_id,
        lower_case=model.description.sentence_transformers.lower_case,
        token_types=model.tokenizer.token_types,
        clean_up=model.tokenizer.clean_up,
    )


def media_policy(config: EngineConfig, *, trusts_callers: bool) -> MediaPolicy:
    return MediaPolicy(
        allowed_local_media_path=config.allowed_local_media_path or None,
        allowed_media_domains=config.allowed_media_domains,
        allow_any_media_domain=config.allow_any_media_domain,
        trusts_caller=trusts_callers,
    )


def seeing_of(model: LoadedModel, config: EngineConfig, tokenizer: Tokenizer, loader: MediaLoader) -> Seeing | None:
    """What reads the images of a model that has eyes."""
    description = model.description
    if (vision := description.architecture.vision) is None:
        return None
    options, token, size = config.mm_processor_kwargs or {}, vision.images.image_token_id, _vocab_size(model)
    if token is not None and (not isinstance(token, int) or not 0 <= token < size):
        raise LoadError(
            f"{description.config.source}: image_token_id is {token!r}, which is none of the model's {size} tokens"
        )
    reader = reader_of(vision.images, model.processor, tokenizer.raw.token_to_id, description.max_length.value, options)
    _check_reader(reader, str(description.checkpoint.folder))
    return Seeing(reader, loader.load, config.max_images)


def _check_reader(reader: ImageReader, folder: str) -> None:
    """Have it read an image that fits all: what its files say wrong is wrong for every one."""
    if {**reader.files.image, **reader.options}.get("do_resize") is False:  # then few fit
        return
    try:
        reader.read(PIL.Image.new("RGB", PLAIN_SIZE), {}, "an empty image")
    except InputTooLong:  # of a model that is to read short texts
        return
    except BadRequest as error:
        raise LoadError(
            f"{folder}: no image can be read as its processor files and mm_processor_kwargs say: {error.message}"
        ) from error


def own_template(model: LoadedModel) -> tuple[str | None, bool]:
    """The model's chat template, and whether it is a spare one that writes what is said and nothing around it."""
    vision, theirs = model.description.architecture.vision, model.tokenizer.chat_template
    if vision is None or (theirs and not vision.images.template_first):
        return theirs, False
    return vision.images.chat_template or theirs, not theirs and not vision.images.template_first


def renderer_of(
    model: LoadedModel,
    config: EngineConfig,
    tokenizer: Tokenizer,
    chat_template: str | None,
    seeing: Seeing | None = None,
) -> Renderer:
    description = model.description
    architecture = description.architecture
    template, is_plain = own_template(model)
    return Renderer(
        tokenizer,
        vocab_size=_vocab_size(model),
        hidden_size=architecture.backbone.hidden_size,
        pairs_with_separator=bool(description.config.get("use_sep_token", architecture.pairs_with_separator)),
        score_template=_score_template(model),
        pair_ending=architecture.pair_ending,
        prompt_embeds=config.enable_prompt_embeds,
        skip_prompt=not description.plan.include_prompt,
        chat=ChatSettings(
            server_template=chat_template,
            tokenizer_template=template,
            plain_template=is_plain,
            content_format=config.chat_template_content_format,
            template_kwargs=config.default_chat_template_kwargs or {},
            special_tokens=model.tokenizer.special_tokens,
            placeholder=None if seeing is None else seeing.placeholder,
        ),
        sides=sides(model),
        instruction=_instruction(model, tokenizer),
        seeing=seeing,
        check_tensors=model.backbone.check if isinstance(model.backbone, TensorModel) else None,
        architecture=description.entry.name,
    )


def _vocab_size(model: LoadedModel) -> int:
    return model.description.architecture.backbone.vocab_size


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
