"""Build the tokenizer, renderer and multimodal processor of a loaded model."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cenote.config.engine import EngineConfig
from cenote.engine.preprocessing.colbert_formats import make_role_formats
from cenote.errors import BadRequest, InputTooLong, LoadError
from cenote.inputs.chat import ChatSettings
from cenote.inputs.images.image_processor import ImageProcessor
from cenote.inputs.images.multimodal_processor import MultimodalProcessor, MultimodalSettings
from cenote.inputs.media.policy import MediaPolicy
from cenote.inputs.model_tokenizer import ModelTokenizer
from cenote.inputs.pairs import uses_query_and_document
from cenote.inputs.renderer import Renderer
from cenote.inputs.renderer_settings import RendererSettings, TokenizerSettings
from cenote.inputs.tokenizer import Tokenizer
from cenote.loading.added_tokens import read_extra_tokens, read_token_texts
from cenote.loading.loaded_model import LoadedModel
from cenote.loading.tokenizer_files import TokenizerFiles
from cenote.protocol.input_types import ScoreTemplate

if TYPE_CHECKING:
    from cenote.inputs.media.loader import MediaLoader

logger = logging.getLogger("cenote")

PROBE_IMAGE_SIZE = (224, 224)  # pixels, a multiple of the patch size of all vision towers


def make_tokenizer_settings(model: LoadedModel) -> TokenizerSettings:
    return TokenizerSettings(
        truncation_side=model.tokenizer.truncation_side,
        pad_token_id=model.tokenizer.pad_token_id,
        lower_case=model.description.sentence_transformers.do_lower_case,
        has_token_types=model.tokenizer.has_token_types,
        clean_up=model.tokenizer.clean_up_spaces,
    )


def make_model_tokenizer(files: TokenizerFiles, name_or_path: str, chat_settings: ChatSettings) -> ModelTokenizer:
    """Return a copy of a tokenizer for programs and plugins."""
    settings = files.tokenizer_config
    return ModelTokenizer(
        files.tokenizer,
        name_or_path=name_or_path,
        special_tokens=files.special_tokens,
        additional_special_tokens=read_token_texts(read_extra_tokens(settings)),
        model_max_length=files.model_max_length,
        truncation_side=files.truncation_side,
        padding_side="left" if settings.get("padding_side") == "left" else "right",
        has_token_types=files.returns_token_types,
        clean_up=files.clean_up_spaces,
        chat_settings=chat_settings,
    )


def make_media_policy(config: EngineConfig, *, trust_callers: bool) -> MediaPolicy:
    return MediaPolicy(
        allowed_local_media_path=config.allowed_local_media_path or None,
        allowed_media_domains=config.allowed_media_domains,
        allow_any_media_domain=config.allow_any_media_domain,
        trust_caller=trust_callers,
    )


def make_multimodal_settings(
    model: LoadedModel, config: EngineConfig, policy: MediaPolicy
) -> MultimodalSettings | None:
    """Return how images are preprocessed; None for a model without a vision tower."""
    description = model.description
    if (vision := description.architecture.vision) is None:
        return None
    token_id, vocab_size = vision.image_spec.image_token_id, _get_vocab_size(model)
    if token_id is not None and (not isinstance(token_id, int) or not 0 <= token_id < vocab_size):
        raise LoadError(
            f"{description.config.source}: invalid image_token_id {token_id!r}; the model has {vocab_size} tokens"
        )
    return MultimodalSettings(
        image_spec=vision.image_spec,
        files=model.processor_files,
        max_tokens=description.max_length.value,
        max_images=config.max_images_per_prompt,
        options=config.mm_processor_kwargs or {},
        media=policy,
    )


def make_multimodal_processor(
    settings: MultimodalSettings, folder: str, tokenizer: Tokenizer, loader: MediaLoader
) -> MultimodalProcessor:
    """Return the multimodal processor, after it has preprocessed an image; `folder`: of the model, in errors."""
    multimodal = settings.make_processor(tokenizer, loader)
    _check_image_processor(multimodal.image_processor, folder)
    return multimodal


def _check_image_processor(processor: ImageProcessor, folder: str) -> None:
    """Preprocess a probe image, so that invalid processor settings fail at startup and not per request."""
    if {**processor.files.image_processor, **processor.options}.get("do_resize") is False:  # few sizes are valid
        return
    from PIL import Image  # models of texts do without

    try:
        processor.preprocess(Image.new("RGB", PROBE_IMAGE_SIZE), {}, "an empty image")
    except InputTooLong:  # max_model_len is set to less than an image takes
        return
    except BadRequest as error:
        raise LoadError(
            f"{folder}: images cannot be preprocessed with its processor files and mm_processor_kwargs: {error.message}"
        ) from error


def get_default_chat_template(model: LoadedModel) -> tuple[str | None, bool]:
    """Return the model's chat template, and whether it is a plain fallback that only concatenates the contents."""
    vision, own_template = model.description.architecture.vision, model.tokenizer.chat_template
    if vision is None or (own_template and not vision.image_spec.overrides_chat_template):
        return own_template, False
    is_fallback = not own_template and not vision.image_spec.overrides_chat_template
    return vision.image_spec.chat_template or own_template, is_fallback


def make_renderer_settings(
    model: LoadedModel,
    config: EngineConfig,
    chat_template: str | None,
    multimodal: MultimodalSettings | None = None,
) -> RendererSettings:
    description = model.description
    architecture = description.architecture
    template, is_plain = get_default_chat_template(model)
    bos_token = model.tokenizer.special_tokens.get("bos_token")
    return RendererSettings(
        vocab_size=_get_vocab_size(model),
        hidden_size=architecture.backbone.hidden_size,
        has_pair_separator=bool(description.config.get("use_sep_token", architecture.pairs_with_separator)),
        score_template=_resolve_score_template(model),
        pair_lengths=architecture.pair_lengths,
        pair_suffix_ids=tuple(architecture.pair_suffix_ids),
        enable_prompt_embeds=config.enable_prompt_embeds,
        exclude_prompt=not description.plan.include_prompt,
        chat_settings=ChatSettings(
            server_template=chat_template,
            tokenizer_template=template,
            has_plain_template=is_plain,
            content_format=config.chat_template_content_format,
            template_kwargs=config.default_chat_template_kwargs or {},
            special_tokens=model.tokenizer.special_tokens,
            image_placeholder=None if multimodal is None else multimodal.image_spec.placeholder,
        ),
        role_formats=make_role_formats(model),
        pooling_start_token=architecture.pooling_start_token,
        bos_token_id=None if bos_token is None else model.tokenizer.tokenizer.token_to_id(bos_token),
        prompt_end=architecture.prompt_end,
        padded_length=architecture.padded_length,
        accepts_empty=architecture.is_static and description.plan.seq_pooling_types.value == ("MEAN",),
        text_format=architecture.text_format,
        architecture=description.entry.name,
        multimodal=multimodal,
        reads_tensors=description.kind.value == "tensors",
    )


def make_renderer(
    model: LoadedModel, settings: RendererSettings, tokenizer: Tokenizer, multimodal: MultimodalProcessor | None
) -> Renderer:
    check_tensors = getattr(model.backbone, "check", None)  # of a TensorModel
    return Renderer(tokenizer, settings, multimodal, check_tensors)


def _get_vocab_size(model: LoadedModel) -> int:
    return model.description.architecture.backbone.vocab_size


def _resolve_score_template(model: LoadedModel) -> ScoreTemplate | None:
    """Return the template that joins query and document, and log it; None if they are joined without one."""
    description = model.description
    if description.score_template is None or description.kind.value != "sequence" or description.num_labels > 1:
        return None
    template, source = description.score_template.value, description.score_template.source
    if template.has_system_message and not uses_query_and_document(template, model.tokenizer.special_tokens):
        logger.warning(
            "%s passes query and document to the chat template, which drops them; they are joined without a template "
            "(--score-template sets another)",
            source,
        )
        return None
    logger.info("query and document are joined by the template %s (from %s)", template.name, source)
    return template
