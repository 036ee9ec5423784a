"""What Cohere's clients embed besides texts: images, and inputs of several parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import msgspec

from cenote.api.request_fields import ChatMessage
from cenote.errors import InvalidBody, Unsupported
from cenote.protocol.input_types import ContentParts, Conversation
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.prompt_selection import select_prompt
from cenote.protocol.requests import PoolRequest


class ImageUrl(msgspec.Struct):
    url: str | None = None


class Part(msgspec.Struct):
    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: ImageUrl | None = None


class MixedInput(msgspec.Struct):
    """Parts that become one vector."""

    content: list[Part]


def parse_images(urls: list[str], model_info: ModelInfo) -> list[ContentParts]:
    if not model_info.supports_images:
        raise Unsupported(f"{model_info.name} reads only text; give texts instead of images", param="images")
    return [ContentParts([make_image_part(url)], f"images[{place}]") for place, url in enumerate(urls)]


def parse_inputs(inputs: list[MixedInput], model_info: ModelInfo) -> list[ContentParts]:
    return [_parse_mixed_input(item, place, model_info) for place, item in enumerate(inputs)]


def _parse_mixed_input(item: MixedInput, index: int, model_info: ModelInfo) -> ContentParts:
    name = f"inputs.{index}.content"
    if not item.content:
        raise InvalidBody(f"{name}: expected at least one part", param=f"body.{name}")
    parts: list[ChatMessage] = []
    for place, part in enumerate(item.content):
        where = f"{name}.{place}"
        if part.type == "text":
            if part.text is None:
                raise InvalidBody("CohereEmbedContent with type='text' requires text", param=f"body.{where}")
            parts.append({"type": "text", "text": part.text})
            continue
        if part.image_url is None or not part.image_url.url:
            raise InvalidBody("CohereEmbedContent with type='image_url' requires image_url.url", param=f"body.{where}")
        if not model_info.supports_images:
            raise Unsupported(f"{model_info.name} reads only text; {where} is an image", param=where)
        parts.append(make_image_part(part.image_url.url))
    return ContentParts(parts, f"inputs[{index}].content")


def make_image_part(url: str) -> ChatMessage:
    return {"type": "image_url", "image_url": {"url": url}}


def replace_inputs(request: PoolRequest, content_parts: list[ContentParts], model_info: ModelInfo) -> PoolRequest:
    """Conversations in which the user says them, where the model has a template for these; else parts by themselves."""
    if not model_info.supports_images:
        return replace(request, inputs=["\n".join(part["text"] for part in each.content) for each in content_parts])
    if not model_info.has_chat_template:
        return replace(request, inputs=content_parts)
    instruction = select_prompt(request, model_info).prompt
    before = [{"role": "system", "content": instruction}] if instruction else []
    chats = [
        Conversation([*before, {"role": "user", "content": each.content}], image_names=_list_image_names(each))
        for each in content_parts
    ]
    return replace(request, inputs=chats, tokenization=replace(request.tokenization, add_special_tokens=False))


def count_images(content_parts: list[ContentParts]) -> int:
    return sum(len(_list_image_names(each)) for each in content_parts)


def _list_image_names(content_parts: ContentParts) -> tuple[str, ...]:
    """As the client finds them in what it sent."""
    if content_parts.param_path.startswith("images"):
        return (content_parts.param_path,)
    return tuple(
        f"{content_parts.param_path}[{place}]"
        for place, part in enumerate(content_parts.content)
        if part["type"] == "image_url"
    )
