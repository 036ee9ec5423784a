"""Images and mixed inputs of the Cohere embed API."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

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
    """Parts that give one embedding."""

    content: list[Part]


def parse_images(urls: list[str], model_info: ModelInfo) -> list[ContentParts]:
    if not model_info.supports_images:
        raise Unsupported(f"{model_info.name} does not support images; use texts", param="images")
    return [ContentParts([make_image_part(url)], f"images[{index}]") for index, url in enumerate(urls)]


def parse_mixed_input(item: MixedInput, index: int, model_info: ModelInfo) -> ContentParts:
    name = f"inputs.{index}.content"
    if not item.content:
        raise InvalidBody(f"{name}: expected at least one part", param=f"body.{name}")
    parts: list[ChatMessage] = []
    for part_index, part in enumerate(item.content):
        param_path = f"{name}.{part_index}"
        if part.type == "text":
            if part.text is None:
                raise InvalidBody("CohereEmbedContent with type='text' requires text", param=f"body.{param_path}")
            parts.append({"type": "text", "text": part.text})
            continue
        if part.image_url is None or not part.image_url.url:
            raise InvalidBody(
                "CohereEmbedContent with type='image_url' requires image_url.url", param=f"body.{param_path}"
            )
        if not model_info.supports_images:
            raise Unsupported(f"{model_info.name} does not support images; {param_path} is an image", param=param_path)
        parts.append(make_image_part(part.image_url.url))
    return ContentParts(parts, f"inputs[{index}].content")


def make_image_part(url: str) -> ChatMessage:
    return {"type": "image_url", "image_url": {"url": url}}


def replace_inputs(request: PoolRequest, content_parts: list[ContentParts], model_info: ModelInfo) -> PoolRequest:
    """Set the inputs: a conversation with one user message each if the model has a chat template, else the parts."""
    if not model_info.supports_images:
        return request.replace(inputs=["\n".join(part["text"] for part in parts.content) for parts in content_parts])
    if not model_info.has_chat_template:
        return request.replace(inputs=content_parts)
    instruction = select_prompt(request, model_info).prompt
    system = [{"role": "system", "content": instruction}] if instruction else []
    chats = [
        Conversation([*system, {"role": "user", "content": parts.content}], image_names=_list_image_names(parts))
        for parts in content_parts
    ]
    return request.replace(inputs=chats, tokenization=replace(request.tokenization, add_special_tokens=False))


def count_images(content_parts: list[ContentParts]) -> int:
    return sum(len(_list_image_names(parts)) for parts in content_parts)


def _list_image_names(content_parts: ContentParts) -> tuple[str, ...]:
    """Return the paths of the images in the request body, for error messages."""
    if content_parts.param_path.startswith("images"):
        return (content_parts.param_path,)
    return tuple(
        f"{content_parts.param_path}[{index}]"
        for index, part in enumerate(content_parts.content)
        if part["type"] == "image_url"
    )
