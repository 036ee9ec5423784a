"""Parse the queries and documents of a score request: texts, or objects with texts and images."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cenote.errors import InvalidBody, Unsupported
from cenote.protocol.input_types import ContentParts, ScoreInput
from cenote.protocol.model_info import ModelInfo


def parse_score_inputs(value: Any, name: str, model_info: ModelInfo) -> list[ScoreInput]:
    """Parse the queries or the documents: a list or a single item; `name` is the field, for error messages."""
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        return [parse_score_input(value, name, model_info)]
    return [parse_score_input(item, f"{name}.{index}", model_info) for index, item in enumerate(value)]


def parse_score_input(item: Any, name: str, model_info: ModelInfo) -> ScoreInput:
    if isinstance(item, str):
        return item
    if not isinstance(item, Mapping):
        raise InvalidBody(f"{name}: score compares texts, got {type(item).__name__}", param=f"body.{name}")
    text, image = item.get("text"), item.get("image") if model_info.supports_images else None
    if image is not None:  # Jina's format
        text_parts = [{"type": "text", "text": text}] if isinstance(text, str) else []
        return ContentParts([{"type": "image", "image": image}, *text_parts], f"{_format_param_path(name)}.image")
    if isinstance(text, str):
        return text
    if (content := item.get("content")) is not None:
        return _parse_content(content, f"{name}.content", model_info)
    forms = '{"text": ...}, {"image": ...}' if model_info.supports_images else '{"text": ...}'
    raise InvalidBody(
        f'{name}: expected a text, {forms} or {{"content": [...]}}, got an object with '
        f"{', '.join(map(repr, item)) or 'nothing in it'}",
        param=f"body.{name}",
    )


def _parse_content(content: Any, name: str, model_info: ModelInfo) -> ScoreInput:
    """Parse message content: a text, parts that are all texts and are joined by newlines, or parts with images."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple) or not content:
        raise InvalidBody(f"{name}: expected a text or a list of parts", param=f"body.{name}")
    if model_info.supports_images and not all(map(_is_text_part, content)):
        return ContentParts(content, _format_param_path(name))
    return "\n".join(_parse_text_part(part, f"{name}.{index}", model_info) for index, part in enumerate(content))


def _is_text_part(part: Any) -> bool:
    return isinstance(part, str) or (isinstance(part, Mapping) and part.get("type") == "text")


def _parse_text_part(part: Any, name: str, model_info: ModelInfo) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str):
        raise InvalidBody(f'{name}: expected a part like {{"type": "text", "text": ...}}', param=f"body.{name}")
    if kind != "text":
        raise Unsupported(
            f"MultiModalParam is not supported for {model_info.architecture}: {name} is of type {kind!r}, "
            f"{model_info.name} accepts only text",
            param=name,
        )
    if not isinstance(text := part.get("text"), str):
        raise InvalidBody(f"{name}.text: expected a text", param=f"body.{name}.text")
    return text


def _format_param_path(name: str) -> str:
    """Convert documents.1.content to documents[1].content, the notation of errors about content parts."""
    return re.sub(r"\.(\d+)", r"[\1]", name)
