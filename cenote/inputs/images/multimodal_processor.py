"""Images among the inputs: found, read, and put into the prompt where their marks stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cenote.errors import BadRequest, InputTooLong, Unsupported
from cenote.inputs.content_parts import is_image_part, parse_part
from cenote.inputs.images.image_processor import ImageProcessor
from cenote.inputs.tokenized_inputs import TokenizedInput
from cenote.inputs.tokenizer import TokenIds
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

if TYPE_CHECKING:
    import PIL.Image


@dataclass(frozen=True, slots=True)
class MultimodalProcessor:
    """How a model comes by the images of its inputs."""

    image_processor: ImageProcessor
    load_image: Callable[[ImageSource], PIL.Image.Image]  # fetches and decodes
    max_images: int  # in one input
    image_cache: dict[tuple[Any, str], ProcessedImage] | None = (
        None  # of one request: what it says twice is looked at once
    )

    @property
    def placeholder(self) -> str:
        return self.image_processor.spec.placeholder

    def process(self, item: Input, options: Mapping[str, Any]) -> Input:
        """The input with its images read; takes as long as they are large."""
        if isinstance(item, Conversation):
            return self._process_conversation(item, options)
        if isinstance(item, ContentParts):
            text, images = self._split_content(item)
            return MultimodalPrompt(text, self._process_images(images, options)) if images else text
        if isinstance(item, MultimodalPair):
            return self._process_pair(item, options)
        if isinstance(item, MultimodalPrompt):
            return replace(item, images=self._process_images(item.images, {**options, **item.mm_processor_kwargs}))
        return item

    def expand_placeholders(self, tokenized: TokenizedInput, images: Sequence[ProcessedImage]) -> TokenizedInput:
        """The prompt with the tokens of its images instead of their marks."""
        spec, prompt = self.image_processor.spec, self.image_processor.arrange_prompt(tokenized.token_ids)
        marks = np.flatnonzero(prompt == self.image_processor.placeholder_id)
        if spec.placeholder_token and len(marks) != len(images):
            raise BadRequest(
                f"the prompt has {len(marks)} times {spec.placeholder_token!r}, and {len(images)} images were given; "
                f"an image "
                "has one mark where it belongs, and a prompt that is cut must not lose it",
                param="multi_modal_data",
            )
        pieces, flags, done = list[TokenIds](), list[Any](), 0
        for mark, picture in zip(marks.tolist(), images, strict=True):
            before = prompt[done:mark]
            pieces += [before, picture.token_ids]
            flags += [np.zeros(len(before), dtype=bool), picture.is_embed]
            done = mark + 1
        rest = prompt[done:]
        token_ids = np.concatenate([*pieces, rest])
        rows = np.flatnonzero(np.concatenate([*flags, np.zeros(len(rest), dtype=bool)]))
        return self._attach_images(tokenized, token_ids, images, rows)

    def build_image_only(self, image: ProcessedImage) -> TokenizedInput:
        """The prompt that is nothing but an image."""
        return TokenizedInput(
            image.token_ids,
            len(image.token_ids),
            len(image.token_ids),
            images=InputImages((image,), np.flatnonzero(image.is_embed)),
        )

    def check_single_modality(self, text: str | Sequence[int], num_images: int) -> None:
        """Models of two towers read one thing at a time."""
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
        added = len(token_ids) - len(tokenized.token_ids)
        return replace(
            tokenized,
            token_ids=token_ids,
            type1_start=len(token_ids),
            num_input_tokens=tokenized.num_input_tokens + added,
            images=InputImages(
                tuple(images), embed_rows, self.image_processor.mrope_positions(token_ids, images, embed_rows)
            ),
        )

    def _process_conversation(self, conversation: Conversation, options: Mapping[str, Any]) -> Conversation:
        images: list[ImageSource] = []
        messages = []
        for number, message in enumerate(conversation.messages):
            content = message.get("content") if isinstance(message, Mapping) else None
            if isinstance(content, list | tuple) and any(map(is_image_part, content)):
                parts = list(content)
                for place, part in enumerate(content):
                    found = parse_part(part, f"messages[{number}].content[{place}]")
                    if isinstance(found, ImageSource):
                        name = (
                            conversation.image_names[len(images)]
                            if len(images) < len(conversation.image_names)
                            else found.param_path
                        )
                        images.append(ImageSource(found.source, name))
                        parts[place] = {"type": "image"}
                message = {**message, "content": parts}
            messages.append(message)
        if not images:
            return conversation
        return replace(conversation, messages=messages, images=self._process_images(images, options))

    def _process_pair(self, pair: MultimodalPair, options: Mapping[str, Any]) -> TextPair:
        (query, first), (document, second) = map(self._split_content, (pair.query, pair.document))
        pictures = self._process_images([*first, *second], options)
        if self.image_processor.spec.is_document_first:
            pictures = (*pictures[len(first) :], *pictures[: len(first)])
        return TextPair(query, document, pair.template, pair.template_kwargs, pictures)

    def _split_content(self, score_input: ScoreInput) -> tuple[str, list[ImageSource]]:
        """As one text, marks of images that it does not have yet before all else."""
        if isinstance(score_input, str):
            return score_input, []
        parts = [
            parse_part(part, f"{score_input.param_path}[{place}]", score_input.param_path)
            for place, part in enumerate(score_input.content)
        ]
        images = [part for part in parts if isinstance(part, ImageSource)]
        texts = [part for part in parts if isinstance(part, str)]
        mark = self.image_processor.spec.placeholder_token
        marked = sum(text.count(mark) for text in texts) if mark else len(images)
        marks, text = "\n".join([self.placeholder] * (len(images) - marked)), "\n".join(texts)
        return marks + (self.image_processor.spec.separator if marks and texts else "") + text, images

    def _process_images(
        self, images: Sequence[ImageSource | ProcessedImage], options: Mapping[str, Any]
    ) -> tuple[ProcessedImage, ...]:
        if len(images) > self.max_images:
            extra = images[self.max_images]
            where = f" ({extra.param_path} is one too many)" if isinstance(extra, ImageSource) else ""
            raise BadRequest(
                f"At most {self.max_images} image(s) may be provided in one prompt, got {len(images)}{where}; "
                "--limit-mm-per-prompt allows more",
                param="multi_modal_data",
                value=len(images),
            )
        if len(images) > 1 and self.image_processor.spec.single_modality_name is not None:
            self.check_single_modality("", len(images))
        pictures, num_tokens = [], 0
        for image in images:
            pictures.append(self._process_image(image, options) if isinstance(image, ImageSource) else image)
            num_tokens += len(pictures[-1].token_ids)
            # no more than one input may hold is read, however many images it has
            if num_tokens > self.image_processor.max_tokens and len(pictures) > 1:  # readers look at each by itself
                raise InputTooLong(
                    f"the first {len(pictures)} of {len(images)} images are {num_tokens} tokens, and this model reads "
                    f"{self.image_processor.max_tokens} at most; give fewer or smaller ones",
                    param="input_tokens",
                    value=num_tokens,
                )
        return tuple(pictures)

    def _process_image(self, image: ImageSource, options: Mapping[str, Any]) -> ProcessedImage:
        known = self.image_cache if isinstance(image.source, str | bytes) else None
        key = (image.source, repr(options))
        if known is not None and key in known:
            return known[key]
        try:
            picture = self.image_processor.preprocess(self.load_image(image), options, image.param_path)
        except BadRequest as error:
            error.param = error.param or image.param_path
            raise
        if known is not None:
            known[key] = picture
        return picture


def has_images(item: Input) -> bool:
    """Whether there is anything to be read before the input can be rendered."""
    if isinstance(item, Conversation):
        messages = item.messages if isinstance(item.messages, list | tuple) else ()  # else it is refused later
        contents = (message.get("content") for message in messages if isinstance(message, Mapping))
        return any(any(map(is_image_part, content)) for content in contents if isinstance(content, list | tuple))
    return isinstance(item, ContentParts | MultimodalPair | MultimodalPrompt)
