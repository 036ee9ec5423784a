"""Specify how the images of a model are preprocessed; imports no torch, since front-ends do it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpec:
    """How images become patches and tokens; preprocessor files of the checkpoint override these values."""

    processor: str  # key of the image processor, see cenote/inputs/images
    placeholder_token: str  # stands for an image in a prompt; empty: images are embedded without text
    placeholder_prefix: str = ""  # around the placeholder where no template writes it
    placeholder_suffix: str = ""
    separator: str = "\n"  # between images and text, where no template writes it
    prompt_token: str = ""  # replaces the placeholder before tokenisation; empty: the placeholder is in the vocabulary
    image_token_id: int | None = None  # of tokens whose embeddings are image features; None: that of the placeholder
    patch_size: int = 14
    merge_size: int = 1  # patches per side that become one token
    options: Mapping[str, Any] = field(default_factory=dict)  # defaults specific to the image processor
    fixed_options: Mapping[str, Any] = field(default_factory=dict)  # of the model's own code; they replace the files'
    image_prompt: str | None = None  # prompt of one image without text, with its placeholder; None: the placeholder
    chat_template: str | None = None  # used if the checkpoint has none
    overrides_chat_template: bool = False  # use it even if the checkpoint has one
    has_special_tokens: bool = False  # around prompts with images, also those of chat templates, which lack them
    is_document_first: bool = False  # in a pair, the document and its images precede the query
    single_modality_name: str | None = None  # model name in errors, for models that take either a text or an image
    text_model: str | None = None  # for models that read images only: the model that embeds texts in the same space

    @property
    def placeholder(self) -> str:
        """Return the text that stands for an image in prompts without a template."""
        return self.placeholder_prefix + self.placeholder_token + self.placeholder_suffix


@dataclass(frozen=True, slots=True)
class ProcessorFiles:
    """Image preprocessing settings of a checkpoint; newer checkpoints store both in one file."""

    image_processor: Mapping[str, Any] = field(default_factory=dict)  # preprocessor_config.json: sizes, means, tiles
    processor: Mapping[str, Any] = field(default_factory=dict)  # processor_config.json: prompt settings


def with_page_prompt(spec: ImageSpec, start: str, default_text: str, end: str) -> ImageSpec:
    """Return a spec that writes a page image into a prompt, with a default text if the request has none."""
    return replace(
        spec,
        image_prompt=start + spec.placeholder + default_text + end,
        chat_template=page_chat_template(start, spec.placeholder, default_text, end),
        overrides_chat_template=True,
    )


def page_chat_template(start: str, placeholder: str, default_text: str, end: str) -> str:
    """Return a chat template for page images with their texts; conversations without images are plain texts."""
    return (
        "{%- set found = namespace(images='', text='') -%}"
        "{%- for message in messages -%}"
        "{%- if message.content is string -%}{%- set found.text = found.text + message.content -%}"
        "{%- else -%}{%- for part in message.content -%}"
        "{%- if part.type == 'image' -%}"
        f"{{%- set found.images = found.images + {placeholder!r} -%}}"
        "{%- elif part.type == 'text' -%}{%- set found.text = found.text + part.text -%}"
        "{%- endif -%}{%- endfor -%}{%- endif -%}{%- endfor -%}"
        f"{{%- if found.images -%}}{{{{ {start!r} + found.images + (found.text or {default_text!r}) + {end!r} }}}}"
        "{%- else -%}{{ found.text }}{%- endif -%}"
    )
