"""Parse content parts (texts and images) in the formats of OpenAI clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cenote.errors import BadRequest, Unsupported
from cenote.protocol.images import ImageSource
from cenote.utils.text import short_repr

# text part types -> the field that holds the text
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
# image part types -> the field that holds the image
IMAGE_PARTS = {"image_url": "image_url", "input_image": "image_url", "image": "image", "image_pil": "image_pil"}
UNSUPPORTED_PARTS = ("image_embeds", "audio_url", "input_audio", "audio", "audio_embeds", "video_url", "video", "file")


def get_part_type(part: Mapping[str, Any], param_path: str, param: str) -> str:
    """Return the type of a part; without `type`, it is inferred from a field that only one type has."""
    names = (*TEXT_PARTS, *IMAGE_PARTS, *UNSUPPORTED_PARTS)
    kind = part.get("type")
    if kind is None:
        kind = next((name for name in names if name in part), None)
    if not isinstance(kind, str) or kind not in names:
        raise BadRequest(
            f"{param_path}.type: invalid value {short_repr(kind)}; expected one of: {', '.join(names)}", param=param
        )
    return kind


def parse_part(part: Any, param_path: str, param: str = "messages") -> str | ImageSource:
    """Return the text of a part, or its image, not loaded yet."""
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise BadRequest(f"{param_path} must be an object with a type, got {type(part).__name__}", param=param)
    kind = get_part_type(part, param_path, param)
    if kind in TEXT_PARTS:
        text = part.get(TEXT_PARTS[kind])
        if not isinstance(text, str):
            raise BadRequest(
                f"{param_path}.{TEXT_PARTS[kind]} must be a string, got {type(text).__name__}", param=param
            )
        return text
    if kind in UNSUPPORTED_PARTS:
        raise Unsupported(f"{param_path} is of type {kind}, but this model reads text and images only", param=param)
    source = part.get(IMAGE_PARTS[kind])
    if isinstance(source, Mapping):  # {"url": ..., "detail": ...}
        source = source.get("url")
    if source is None or (isinstance(source, str) and not source):
        raise BadRequest(f"{param_path} is of type {kind}, but has no {IMAGE_PARTS[kind]}", param=param)
    return ImageSource(source, param_path)


def is_image_part(part: Any) -> bool:
    """Whether a part is an image; invalid parts are reported later, by `parse_part`."""
    return isinstance(part, Mapping) and any(name == part.get("type") or name in part for name in IMAGE_PARTS)


def join_text_parts(content: Sequence[Any], param_path: str, architecture: str) -> str:
    """Join the text parts for a text model; images raise Unsupported."""
    parts = [parse_part(part, f"{param_path}[{index}]", "content") for index, part in enumerate(content)]
    for index, part in enumerate(parts):
        if isinstance(part, ImageSource):
            raise Unsupported(
                f"MultiModalParam is not supported for {architecture}: {param_path}[{index}] is an image, but this "
                "model reads text only",
                param="content",
            )
    return "\n".join(map(str, parts))
