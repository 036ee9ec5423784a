"""Images among the inputs: found, read, and put into the prompt where their marks stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cenote.errors import BadRequest, InputTooLong, Unsupported
from cenote.inputs.content_parts import as_part, is_image
from cenote.inputs.images.image_processor import ImageReader
from cenote.inputs.tokenized_inputs import Rendered
from cenote.inputs.tokenizer import TokenIds
from cenote.protocol.images import Image, Picture, Sight
from cenote.protocol.input_types import Chat, Input, Pair, Parts, PartsPair, Pictured, Side

if TYPE_CHECKING:
    import PIL.Image


@dataclass(frozen=True, slots=True)
class Seeing:
    """How a model comes by the images of its inputs."""

    reader: ImageReader
    load: Callable[[Image], PIL.Image.Image]  # fetches and decodes
    max_images: int  # in one input
    known: dict[tuple[Any, str], Picture] | None = None  # of one request: what it says twice is looked at once

    @property
    def placeholder(self) -> str:
        return self.reader.spec.placeholder

    def read(self, item: Input, options: Mapping[str, Any]) -> Input:
        """The input with its images read; takes as long as they are large."""
        if isinstance(item, Chat):
            return self._chat(item, options)
        if isinstance(item, Parts):
            text, images = self._side(item)
            return Pictured(text, self._pictures(images, options)) if images else text
        if isinstance(item, PartsPair):
            return self._pair(item, options)
        if isinstance(item, Pictured):
            return replace(item, images=self._pictures(item.images, {**options, **item.options}))
        return item

    def expanded(self, rendered: Rendered, pictures: Sequence[Picture]) -> Rendered:
        """The prompt with the tokens of its images instead of their marks."""
        spec, prompt = self.reader.spec, self.reader.laid_out(rendered.token_ids)
        marks = np.flatnonzero(prompt == self.reader.mark_id)
        if spec.mark and len(marks) != len(pictures):
            raise BadRequest(
                f"the prompt has {len(marks)} times {spec.mark!r}, and {len(pictures)} images were given; an image "
                "has one mark where it belongs, and a prompt that is cut must not lose it",
                param="multi_modal_data",
            )
        pieces, flags, done = list[TokenIds](), list[Any](), 0
        for mark, picture in zip(marks.tolist(), pictures, strict=True):
            before = prompt[done:mark]
            pieces += [before, picture.token_ids]
            flags += [np.zeros(len(before), dtype=bool), picture.seen]
            done = mark + 1
        rest = prompt[done:]
        token_ids = np.concatenate([*pieces, rest])
        rows = np.flatnonzero(np.concatenate([*flags, np.zeros(len(rest), dtype=bool)]))
        return self._with_sight(rendered, token_ids, pictures, rows)

    def by_itself(self, picture: Picture) -> Rendered:
        """The prompt that is nothing but an image."""
        return Rendered(
            picture.token_ids,
            len(picture.token_ids),
            len(picture.token_ids),
            sight=Sight((picture,), np.flatnonzero(picture.seen)),
        )

    def check_alone(self, text: str | Sequence[int], num_images: int) -> None:
        """Models of two towers read one thing at a time."""
        name = self.reader.spec.alone
        if len(text) or num_images != 1:
            raise Unsupported(
                f"{name} accepts text-only or image-only inputs, not both! You must pass an image with an empty token "
                f"prompt. Got {num_images} images and a prompt of length {len(text)}",
                param="multi_modal_data",
            )

    def _with_sight(self, rendered: Rendered, token_ids: TokenIds, pictures: Sequence[Picture], rows: Any) -> Rendered:
        added = len(token_ids) - len(rendered.token_ids)
        return replace(
            rendered,
            token_ids=token_ids,
            second_start=len(token_ids),
            num_input_tokens=rendered.num_input_tokens + added,
            sight=Sight(tuple(pictures), rows, self.reader.axes(token_ids, pictures, rows)),
        )

    def _chat(self, chat: Chat, options: Mapping[str, Any]) -> Chat:
        images: list[Image] = []
        messages = []
        for number, message in enumerate(chat.messages):
            content = message.get("content") if isinstance(message, Mapping) else None
            if isinstance(content, list | tuple) and any(map(is_image, content)):
                parts = list(content)
                for place, part in enumerate(content):
                    found = as_part(part, f"messages[{number}].content[{place}]")
                    if isinstance(found, Image):
                        name = chat.names[len(images)] if len(images) < len(chat.names) else found.where
                        images.append(Image(found.source, name))
                        parts[place] = {"type": "image"}
                message = {**message, "content": parts}
            messages.append(message)
        if not images:
            return chat
        return replace(chat, messages=messages, pictures=self._pictures(images, options))

    def _pair(self, pair: PartsPair, options: Mapping[str, Any]) -> Pair:
        (query, first), (document, second) = map(self._side, (pair.query, pair.document))
        pictures = self._pictures([*first, *second], options)
        if self.reader.spec.document_first:
            pictures = (*pictures[len(first) :], *pictures[: len(first)])
        return Pair(query, document, pair.template, pair.template_kwargs, pictures)

    def _side(self, side: Side) -> tuple[str, list[Image]]:
        """As one text, marks of images that it does not have yet before all else."""
        if isinstance(side, str):
            return side, []
        parts = [as_part(part, f"{side.where}[{place}]", side.where) for place, part in enumerate(side.content)]
        images = [part for part in parts if isinstance(part, Image)]
        texts = [part for part in parts if isinstance(part, str)]
        mark = self.reader.spec.mark
        marked = sum(text.count(mark) for text in texts) if mark else len(images)
        marks, text = "\n".join([self.placeholder] * (len(images) - marked)), "\n".join(texts)
        return marks + (self.reader.spec.joint if marks and texts else "") + text, images

    def _pictures(self, images: Sequence[Image | Picture], options: Mapping[str, Any]) -> tuple[Picture, ...]:
        if len(images) > self.max_images:
            extra = images[self.max_images]
            where = f" ({extra.where} is one too many)" if isinstance(extra, Image) else ""
            raise BadRequest(
                f"At most {self.max_images} image(s) may be provided in one prompt, got {len(images)}{where}; "
                "--limit-mm-per-prompt allows more",
                param="multi_modal_data",
                value=len(images),
            )
        if len(images) > 1 and self.reader.spec.alone is not None:
            self.check_alone("", len(images))
        pictures, num_tokens = [], 0
        for image in images:
            pictures.append(self._picture(image, options) if isinstance(image, Image) else image)
            num_tokens += len(pictures[-1].token_ids)
            # no more than one input may hold is read, however many images it has
            if num_tokens > self.reader.max_tokens and len(pictures) > 1:  # readers look at each by itself
                raise InputTooLong(
                    f"the first {len(pictures)} of {len(images)} images are {num_tokens} tokens, and this model reads "
                    f"{self.reader.max_tokens} at most; give fewer or smaller ones",
                    param="input_tokens",
                    value=num_tokens,
                )
        return tuple(pictures)

    def _picture(self, image: Image, options: Mapping[str, Any]) -> Picture:
        known = self.known if isinstance(image.source, str | bytes) else None
        key = (image.source, repr(options))
        if known is not None and key in known:
            return known[key]
        try:
            picture = self.reader.read(self.load(image), options, image.where)
        except BadRequest as error:
            error.param = error.param or image.where
            raise
        if known is not None:
            known[key] = picture
        return picture


def has_images(item: Input) -> bool:
    """Whether there is anything to be read before the input can be rendered."""
    if isinstance(item, Chat):
        messages = item.messages if isinstance(item.messages, list | tuple) else ()  # else it is refused later
        contents = (message.get("content") for message in messages if isinstance(message, Mapping))
        return any(any(map(is_image, content)) for content in contents if isinstance(content, list | tuple))
    return isinstance(item, Parts | PartsPair | Pictured)
