"""The texts that are compared with each other, as people write them: bare, or in objects that hold one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cenote.errors import InvalidBody, Unsupported
from cenote.request import About


def side_texts(given: Any, name: str, about: About) -> list[str]:
    """The texts of one side, which may be a single one; `name` is the field it came in."""
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        return [side_text(given, name, about)]
    return [side_text(item, f"{name}.{place}", about) for place, item in enumerate(given)]


def side_text(item: Any, name: str, about: About) -> str:
    if isinstance(item, str):
        return item
    if not isinstance(item, Mapping):
        raise InvalidBody(f"{name}: score compares texts, got {type(item).__name__}", param=f"body.{name}")
    if isinstance(text := item.get("text"), str):
        return text
    if (content := item.get("content")) is not None:
        return content_text(content, f"{name}.content", about)
    raise InvalidBody(
        f'{name}: expected a text, {{"text": ...}} or {{"content": [...]}}, got an object with '
        f"{', '.join(map(repr, item)) or 'nothing in it'}",
        param=f"body.{name}",
    )


def content_text(content: Any, name: str, about: About) -> str:
    """The content of a message: a text, or parts that are all texts and become its lines."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise InvalidBody(f"{name}: expected a text or a list of parts", param=f"body.{name}")
    return "\n".join(_part_text(part, f"{name}.{place}", about) for place, part in enumerate(content))


def _part_text(part: Any, name: str, about: About) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str):
        raise InvalidBody(f'{name}: expected a part like {{"type": "text", "text": ...}}', param=f"body.{name}")
    if kind != "text":
        raise Unsupported(
            f"MultiModalParam is not supported for {about.architecture}: {name} is of type {kind!r}, "
            f"{about.model} reads only text",
            param=name,
        )
    if not isinstance(text := part.get("text"), str):
        raise InvalidBody(f"{name}.text: expected a text", param=f"body.{name}.text")
    return text
