"""The parts of a content: texts and images, as OpenAI's clients write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cenote.errors import BadRequest, Unsupported
from cenote.protocol.images import ImageSource
from cenote.utils.text import short_repr

# kinds of parts that are text, and the entry that has it
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
# kinds that are an image, and the entry that has it
IMAGE_PARTS = {"image_url": "image_url", "input_image": "image_url", "image": "image", "image_pil": "image_pil"}
UNSUPPORTED_PARTS = ("image_embeds", "audio_url", "input_audio", "audio", "audio_embeds", "video_url", "video", "file")


def get_part_type(part: Mapping[str, Any], param_path: str, param: str) -> str:
    """The type of a part; an entry that only one kind has tells it as well."""
    names = (*TEXT_PARTS, *IMAGE_PARTS, *UNSUPPORTED_PARTS)
    kind = part.get("type")
    if kind is None:
        kind = next((name for name in names if name in part), None)
    if not isinstance(kind, str) or kind not in names:
        raise BadRequest(f"{param_path}.type is {short_repr(kind)}; there are: {', '.join(names)}", param=param)
    return kind


def parse_part(part: Any, param_path: str, param: str = "messages") -> str | ImageSource:
    """A text, or an image that has yet to be read."""
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise BadRequest(f"{param_path} is an object with a type, not {type(part).__name__}", param=param)
    kind = get_part_type(part, param_path, param)
    if kind in TEXT_PARTS:
        text = part.get(TEXT_PARTS[kind])
        if not isinstance(text, str):
            raise BadRequest(f"{param_path}.{TEXT_PARTS[kind]} is a string, not {type(text).__name__}", param=param)
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
    """Whether it has to be looked at; what is wrong with a part is said when that is done."""
    return isinstance(part, Mapping) and any(name == part.get("type") or name in part for name in IMAGE_PARTS)


def join_text_parts(content: Sequence[Any], param_path: str, architecture: str) -> str:
    """The texts of a content that a model reads which knows nothing else."""
    texts = [parse_part(part, f"{param_path}[{place}]", "content") for place, part in enumerate(content)]
    for place, part in enumerate(texts):
        if isinstance(part, ImageSource):
            raise Unsupported(
                f"MultiModalParam is not supported for {architecture}: {param_path}[{place}] is an image, and this "
                f"model "
                "reads text only",
                param="content",
            )
    return "\n".join(map(str, texts))
