"""The parts of a content: texts and images, as OpenAI's clients write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cenote.errors import BadRequest, Unsupported
from cenote.inputs.images.processor_options import shortened
from cenote.protocol.images import Image

# kinds of parts that are text, and the entry that has it
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
# kinds that are an image, and the entry that has it
IMAGE_PARTS = {"image_url": "image_url", "input_image": "image_url", "image": "image", "image_pil": "image_pil"}
OTHER_PARTS = ("image_embeds", "audio_url", "input_audio", "audio", "audio_embeds", "video_url", "video", "file")


def kind_of(part: Mapping[str, Any], where: str, param: str) -> str:
    """The type of a part; an entry that only one kind has tells it as well."""
    names = (*TEXT_PARTS, *IMAGE_PARTS, *OTHER_PARTS)
    kind = part.get("type")
    if kind is None:
        kind = next((name for name in names if name in part), None)
    if not isinstance(kind, str) or kind not in names:
        raise BadRequest(f"{where}.type is {shortened(kind)}; there are: {', '.join(names)}", param=param)
    return kind


def as_part(given: Any, where: str, param: str = "messages") -> str | Image:
    """A text, or an image that has yet to be read."""
    if isinstance(given, str):
        return given
    if not isinstance(given, Mapping):
        raise BadRequest(f"{where} is an object with a type, not {type(given).__name__}", param=param)
    kind = kind_of(given, where, param)
    if kind in TEXT_PARTS:
        text = given.get(TEXT_PARTS[kind])
        if not isinstance(text, str):
            raise BadRequest(f"{where}.{TEXT_PARTS[kind]} is a string, not {type(text).__name__}", param=param)
        return text
    if kind in OTHER_PARTS:
        raise Unsupported(f"{where} is of type {kind}, but this model reads text and images only", param=param)
    source = given.get(IMAGE_PARTS[kind])
    if isinstance(source, Mapping):  # {"url": ..., "detail": ...}
        source = source.get("url")
    if source is None or (isinstance(source, str) and not source):
        raise BadRequest(f"{where} is of type {kind}, but has no {IMAGE_PARTS[kind]}", param=param)
    return Image(source, where)


def is_image(part: Any) -> bool:
    """Whether it has to be looked at; what is wrong with a part is said when that is done."""
    return isinstance(part, Mapping) and any(name == part.get("type") or name in part for name in IMAGE_PARTS)


def plain_text(content: Sequence[Any], where: str, architecture: str) -> str:
    """The texts of a content that a model reads which knows nothing else."""
    texts = [as_part(part, f"{where}[{place}]", "content") for place, part in enumerate(content)]
    for place, part in enumerate(texts):
        if isinstance(part, Image):
            raise Unsupported(
                f"MultiModalParam is not supported for {architecture}: {where}[{place}] is an image, and this model "
                "reads text only",
                param="content",
            )
    return "\n".join(map(str, texts))
