"""What Cohere's clients embed besides texts: images, and inputs of several parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import msgspec

from cenote.api.request_fields import Message
from cenote.errors import InvalidBody, Unsupported
from cenote.protocol.input_types import Chat, Parts
from cenote.protocol.prompt_selection import meaning
from cenote.protocol.requests import About, PoolRequest


class ImageUrl(msgspec.Struct):
    url: str | None = None


class Part(msgspec.Struct):
    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: ImageUrl | None = None


class MixedInput(msgspec.Struct):
    """Parts that become one vector."""

    content: list[Part]


def of_images(urls: list[str], about: About) -> list[Parts]:
    if not about.reads_images:
        raise Unsupported(f"{about.model} reads only text; give texts instead of images", param="images")
    return [Parts([image_part(url)], f"images[{place}]") for place, url in enumerate(urls)]


def of_inputs(inputs: list[MixedInput], about: About) -> list[Parts]:
    return [_mixed(item, place, about) for place, item in enumerate(inputs)]


def _mixed(item: MixedInput, number: int, about: About) -> Parts:
    name = f"inputs.{number}.content"
    if not item.content:
        raise InvalidBody(f"{name}: expected at least one part", param=f"body.{name}")
    parts: list[Message] = []
    for place, part in enumerate(item.content):
        where = f"{name}.{place}"
        if part.type == "text":
            if part.text is None:
                raise InvalidBody("CohereEmbedContent with type='text' requires text", param=f"body.{where}")
            parts.append({"type": "text", "text": part.text})
            continue
        if part.image_url is None or not part.image_url.url:
            raise InvalidBody("CohereEmbedContent with type='image_url' requires image_url.url", param=f"body.{where}")
        if not about.reads_images:
            raise Unsupported(f"{about.model} reads only text; {where} is an image", param=where)
        parts.append(image_part(part.image_url.url))
    return Parts(parts, f"inputs[{number}].content")


def image_part(url: str) -> Message:
    return {"type": "image_url", "image_url": {"url": url}}


def with_parts(request: PoolRequest, given: list[Parts], about: About) -> PoolRequest:
    """Conversations in which the user says them, where the model has a template for these; else parts by themselves."""
    if not about.reads_images:
        return replace(request, inputs=["\n".join(part["text"] for part in each.content) for each in given])
    if not about.has_chat_template:
        return replace(request, inputs=given)
    instruction = meaning(request, about).prompt
    before = [{"role": "system", "content": instruction}] if instruction else []
    chats = [Chat([*before, {"role": "user", "content": each.content}], names=_image_names(each)) for each in given]
    return replace(request, inputs=chats, tokenization=replace(request.tokenization, add_special_tokens=False))


def num_images(given: list[Parts]) -> int:
    return sum(len(_image_names(each)) for each in given)


def _image_names(parts: Parts) -> tuple[str, ...]:
    """As the client finds them in what it sent."""
    if parts.where.startswith("images"):
        return (parts.where,)
    return tuple(f"{parts.where}[{place}]" for place, part in enumerate(parts.content) if part["type"] == "image_url")
