"""What is compared with each other, as people write it: bare texts, or objects that hold texts and images."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cenote.errors import InvalidBody, Unsupported
from cenote.protocol.input_types import Parts, Side
from cenote.protocol.requests import About


def as_sides(given: Any, name: str, about: About) -> list[Side]:
    """Everything on one side, which may be a single thing; `name` is the field it came in."""
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        return [as_side(given, name, about)]
    return [as_side(item, f"{name}.{place}", about) for place, item in enumerate(given)]


def as_side(item: Any, name: str, about: About) -> Side:
    if isinstance(item, str):
        return item
    if not isinstance(item, Mapping):
        raise InvalidBody(f"{name}: score compares texts, got {type(item).__name__}", param=f"body.{name}")
    text, image = item.get("text"), item.get("image") if about.reads_images else None
    if image is not None:  # as Jina's clients write it
        said = [{"type": "text", "text": text}] if isinstance(text, str) else []
        return Parts([{"type": "image", "image": image}, *said], f"{_place(name)}.image")
    if isinstance(text, str):
        return text
    if (content := item.get("content")) is not None:
        return _content(content, f"{name}.content", about)
    forms = '{"text": ...}, {"image": ...}' if about.reads_images else '{"text": ...}'
    raise InvalidBody(
        f'{name}: expected a text, {forms} or {{"content": [...]}}, got an object with '
        f"{', '.join(map(repr, item)) or 'nothing in it'}",
        param=f"body.{name}",
    )


def _content(content: Any, name: str, about: About) -> Side:
    """The content of a message: a text, parts that are all texts and become its lines, or parts with images."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple) or not content:
        raise InvalidBody(f"{name}: expected a text or a list of parts", param=f"body.{name}")
    if about.reads_images and not all(map(_is_text, content)):
        return Parts(content, _place(name))
    return "\n".join(_part_text(part, f"{name}.{place}", about) for place, part in enumerate(content))


def _is_text(part: Any) -> bool:
    return isinstance(part, str) or (isinstance(part, Mapping) and part.get("type") == "text")


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


def _place(name: str) -> str:
    """documents.1.content as documents[1].content, the way parts of messages are named."""
    return re.sub(r"\.(\d+)", r"[\1]", name)
