"""Load and preprocess the images of inputs, and expand their placeholders in tokenized prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from cenote.errors import BadRequest, InputTooLong, Unsupported
from cenote.inputs.content_parts import is_image_part, parse_part
from cenote.inputs.images.image_processor import ImageProcessor, make_image_processor
from cenote.inputs.media.policy import MediaPolicy
from cenote.inputs.tokenized_inputs import TokenizedInput
from cenote.inputs.tokenizer import TokenIds, Tokenizer
from cenote.models.image_spec import ImageSpec, ProcessorFiles
from cenote.protocol.images import ImageSource, InputImages, ProcessedImage
from cenote.protocol.input_types import (
    ContentParts,
    Conversation,
    Input,
    MultimodalPair,
    MultimodalPrompt,
    ScoreInput,
    TextPair,
)

if TYPE_CHECKING:  # with Pillow
    import PIL.Image

    from cenote.inputs.media.loader import MediaLoader


@dataclass(frozen=True, slots=True, kw_only=True)
class MultimodalSettings:
    """Everything about a model that preprocessing its images needs, as plain values; front-ends get them as well."""

    image_spec: ImageSpec
    files: ProcessorFiles
    max_tokens: int  # the model length
    max_images: int  # in one input
    options: Mapping[str, Any]  # of the image processor, set by the server
    media: MediaPolicy

    def make_processor(self, tokenizer: Tokenizer, loader: MediaLoader) -> MultimodalProcessor:
        token_to_id = tokenizer.raw.token_to_id
        processor = make_image_processor(self.image_spec, self.files, token_to_id, self.max_tokens, self.options)
        return MultimodalProcessor(processor, loader.load, self.max_images)


@dataclass(frozen=True, slots=True)
class MultimodalProcessor:
    """Image loading and preprocessing of one model."""

    image_processor: ImageProcessor
    load_image: Callable[[ImageSource], PIL.Image.Image]  # fetches and decodes
    max_images: int  # in one input
    # of one request, so that a repeated image is processed once; None: no caching
    image_cache: dict[tuple[Any, str], ProcessedImage] | None = None

    @property
    def placeholder(self) -> str:
        return self.image_processor.spec.placeholder

    def process(self, item: Input, options: Mapping[str, Any]) -> Input:
        """Return the input with its images loaded and preprocessed; slow for large images."""
        if isinstance(item, Conversation):
            return self._process_conversation(item, options)
        if isinstance(item, ContentParts):
            text, images = self._split_content(item)
            return MultimodalPrompt(text, self._process_images(images, options)) if images else text
        if isinstance(item, MultimodalPair):
            return self._process_pair(item, options)
        if isinstance(item, MultimodalPrompt):
            processed = self._process_images(item.images, {**options, **item.mm_processor_kwargs})
            prompt, own_prompt = item.prompt, self.image_processor.spec.image_prompt
            if own_prompt is not None and len(processed) == 1 and not len(prompt):
                prompt = own_prompt
            return replace(item, prompt=prompt, images=processed)
        return item

    def expand_placeholders(self, tokenized: TokenizedInput, images: Sequence[ProcessedImage]) -> TokenizedInput:
        """Replace every placeholder in a tokenized prompt by the tokens of its image."""
        spec, prompt = self.image_processor.spec, self.image_processor.arrange_prompt(tokenized.token_ids)
        placeholders = np.flatnonzero(prompt == self.image_processor.placeholder_id)
        if spec.placeholder_token and len(placeholders) != len(images):
            raise BadRequest(
                f"the prompt has {len(placeholders)} placeholders {spec.placeholder_token!r}, but {len(images)} images "
                "were given; every image needs one placeholder, which truncation must not remove",
                param="multi_modal_data",
            )
        parts, masks, position = list[TokenIds](), list[Any](), 0
        for placeholder, image in zip(placeholders.tolist(), images, strict=True):
            text = prompt[position:placeholder]
            parts += [text, image.token_ids]
            masks += [np.zeros(len(text), dtype=bool), image.is_embed]
            position = placeholder + 1
        rest = prompt[position:]
        token_ids = np.concatenate([*parts, rest])
        embed_rows = np.flatnonzero(np.concatenate([*masks, np.zeros(len(rest), dtype=bool)]))
        return self._attach_images(tokenized, token_ids, images, embed_rows)

    def build_image_only(self, image: ProcessedImage) -> TokenizedInput:
        """Build the input of a model that reads either a text or an image."""
        return TokenizedInput(
            image.token_ids,
            len(image.token_ids),
            len(image.token_ids),
            images=InputImages((image,), np.flatnonzero(image.is_embed)),
        )

    def check_single_modality(self, text: str | Sequence[int], num_images: int) -> None:
        """Raise Unsupported unless the input is exactly one image: models with two towers do not combine them."""
        name = self.image_processor.spec.single_modality_name
        if len(text) or num_images != 1:
            raise Unsupported(
                f"{name} accepts text-only or image-only inputs, not both! You must pass an image with an empty token "
                f"prompt. Got {num_images} images and a prompt of length {len(text)}",
                param="multi_modal_data",
            )

    def _attach_images(
        self, tokenized: TokenizedInput, token_ids: TokenIds, images: Sequence[ProcessedImage], embed_rows: Any
    ) -> TokenizedInput:
        num_added = len(token_ids) - len(tokenized.token_ids)
        return replace(
            tokenized,
            token_ids=token_ids,
            type1_start=len(token_ids),
            num_input_tokens=tokenized.num_input_tokens + num_added,
            images=InputImages(
                tuple(images), embed_rows, self.image_processor.mrope_positions(token_ids, images, embed_rows)
            ),
        )

    def _process_conversation(self, conversation: Conversation, options: Mapping[str, Any]) -> Conversation:
        images: list[ImageSource] = []
        messages = []
        for message_index, message in enumerate(conversation.messages):
            content = message.get("content") if isinstance(message, Mapping) else None
            if isinstance(content, list | tuple) and any(map(is_image_part, content)):
                parts = list(content)
                for part_index, part in enumerate(content):
                    parsed = parse_part(part, f"messages[{message_index}].content[{part_index}]")
                    if isinstance(parsed, ImageSource):
                        name = (
                            conversation.image_names[len(images)]
                            if len(images) < len(conversation.image_names)
                            else parsed.param_path
                        )
                        images.append(ImageSource(parsed.source, name))
                        parts[part_index] = {"type": "image"}
                message = {**message, "content": parts}
            messages.append(message)
        if not images:
            return conversation
        return replace(conversation, messages=messages, images=self._process_images(images, options))

    def _process_pair(self, pair: MultimodalPair, options: Mapping[str, Any]) -> TextPair:
        query, query_images = self._split_content(pair.query)
        document, document_images = self._split_content(pair.document)
        images = self._process_images([*query_images, *document_images], options)
        if self.image_processor.spec.is_document_first:
            images = (*images[len(query_images) :], *images[: len(query_images)])
        return TextPair(query, document, pair.template, pair.template_kwargs, images)

    def _split_content(self, score_input: ScoreInput) -> tuple[str, list[ImageSource]]:
        """Return the joined texts and the images; placeholders that the texts do not contain come first."""
        if isinstance(score_input, str):
            return score_input, []
        parts = [
            parse_part(part, f"{score_input.param_path}[{index}]", score_input.param_path)
            for index, part in enumerate(score_input.content)
        ]
        images = [part for part in parts if isinstance(part, ImageSource)]
        texts = [part for part in parts if isinstance(part, str)]
        if len(images) == 1 and not texts and (prompt := self.image_processor.spec.image_prompt):
            return prompt, images
        token = self.image_processor.spec.placeholder_token
        num_placed = sum(text.count(token) for text in texts) if token else len(images)
        prefix = "\n".join([self.placeholder] * (len(images) - num_placed))
        separator = self.image_processor.spec.separator if prefix and texts else ""
        return prefix + separator + "\n".join(texts), images

    def _process_images(
        self, images: Sequence[ImageSource | ProcessedImage], options: Mapping[str, Any]
    ) -> tuple[ProcessedImage, ...]:
        if len(images) > self.max_images:
            extra = images[self.max_images]
            name = f" ({extra.param_path} is one too many)" if isinstance(extra, ImageSource) else ""
            raise BadRequest(
                f"At most {self.max_images} image(s) may be provided in one prompt, got {len(images)}{name}; "
                "--limit-mm-per-prompt raises the limit",
                param="multi_modal_data",
                value=len(images),
            )
        if len(images) > 1 and self.image_processor.spec.single_modality_name is not None:
            self.check_single_modality("", len(images))
        processed, num_tokens = list[ProcessedImage](), 0
        for image in images:
            processed.append(self._process_image(image, options) if isinstance(image, ImageSource) else image)
            num_tokens += len(processed[-1].token_ids)
            # stop before the remaining images are loaded; image processors check the first one themselves
            if num_tokens > self.image_processor.max_tokens and len(processed) > 1:
                raise InputTooLong(
                    f"the first {len(processed)} of {len(images)} images are {num_tokens} tokens, but this model reads "
                    f"at most {self.image_processor.max_tokens}; send fewer or smaller ones",
                    param="input_tokens",
                    value=num_tokens,
                )
        return tuple(processed)

    def _process_image(self, image: ImageSource, options: Mapping[str, Any]) -> ProcessedImage:
        cache = self.image_cache if isinstance(image.source, str | bytes) else None
        key = (image.source, repr(options))
        if cache is not None and key in cache:
            return cache[key]
        try:
            processed = self.image_processor.preprocess(self.load_image(image), options, image.param_path)
        except BadRequest as error:
            error.param = error.param or image.param_path
            raise
        if cache is not None:
            cache[key] = processed
        return processed


def has_images(item: Input) -> bool:
    """Whether an input must be processed before it can be rendered."""
    if isinstance(item, Conversation):
        messages = (
            item.messages if isinstance(item.messages, list | tuple) else ()
        )  # others are refused by the renderer
        contents = (message.get("content") for message in messages if isinstance(message, Mapping))
        return any(any(map(is_image_part, content)) for content in contents if isinstance(content, list | tuple))
    return isinstance(item, ContentParts | MultimodalPair | MultimodalPrompt)
