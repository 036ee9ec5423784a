"""Content parts in the formats of different clients, and conversations with images."""

from __future__ import annotations

from typing import Any

import pytest

from cenote.errors import BadRequest, Unsupported
from cenote.inputs.chat import ChatSettings, render_conversation
from cenote.inputs.content_parts import is_image_part, join_text_parts, parse_part
from cenote.protocol.images import ImageSource
from cenote.protocol.input_types import Conversation

PARAM_PATH = "messages[3].content[2]"
IMAGE_PLACEHOLDER = "<image>"
STRING = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
PARTS = """{% for m in messages %}{% for part in m.content -%}
{{ '(I)' if part.type == 'image' else part.text }}{% endfor %};{% endfor %}"""


def render(template: str, *parts: Any, **options: Any) -> str:
    conversation = Conversation([{"role": "user", "content": list(parts)}], **options)
    return render_conversation(
        conversation, ChatSettings(tokenizer_template=template, image_placeholder=IMAGE_PLACEHOLDER)
    )


def text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:x", "detail": "high"}},
        {"type": "image_url", "image_url": "data:x"},
        {"type": "input_image", "image_url": "data:x"},
        {"type": "image", "image": "data:x"},
        {"type": "image_pil", "image_pil": "data:x"},
        {"image_url": {"url": "data:x"}},
        {"image": "data:x", "uuid": "7"},
    ],
)
def test_every_spelling_of_an_image_part_is_parsed(part: dict[str, Any]) -> None:
    parsed = parse_part(part, PARAM_PATH)

    assert is_image_part(part)
    assert isinstance(parsed, ImageSource) and (parsed.source, parsed.param_path) == ("data:x", PARAM_PATH)


@pytest.mark.parametrize("part", ["a", text_part("a"), {"type": "input_text", "text": "a"}, {"text": "a"}])
def test_every_spelling_of_a_text_part_is_parsed(part: Any) -> None:
    assert parse_part(part, PARAM_PATH) == "a"
    assert not is_image_part(part)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (7, "must be an object with a type, got int"),
        ({}, ".type: invalid value None; expected one of: text, "),
        ({"type": ["text"]}, "expected one of: text, "),
        ({"type": "picture"}, ".type: invalid value 'picture'; expected one of: text, "),
        ({"type": "text"}, "text must be a string, got NoneType"),
        ({"type": "text", "text": 5}, ".text must be a string, got int"),
        ({"type": "image_url"}, "has no image_url"),
        ({"type": "image_url", "image_url": {}}, "has no image_url"),
        ({"type": "image_url", "image_url": {"url": ""}}, "has no image_url"),
        ({"type": "image", "image_url": "data:x"}, "has no image"),
        ({"type": "video_url", "video_url": {"url": "data:x"}}, "reads text and images only"),
        ({"type": "image_embeds", "image_embeds": "AA=="}, "reads text and images only"),
    ],
)
def test_an_invalid_part_is_refused_with_its_path(part: Any, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_part(part, PARAM_PATH)

    assert caught.value.message.startswith(PARAM_PATH) and message in caught.value.message


def test_a_text_model_joins_text_parts_and_refuses_images() -> None:
    assert join_text_parts([text_part("a"), "b"], "documents[0].content", "BertModel") == "a\nb"
    with pytest.raises(Unsupported, match=r"not supported for BertModel: documents\[0\]\.content\[1\] is an image"):
        join_text_parts([text_part("a"), {"image": "data:x"}], "documents[0].content", "BertModel")


def test_templates_that_take_parts_get_images_in_place() -> None:
    assert render(PARTS, text_part("a"), {"type": "image"}, text_part("b")) == "a(I)b;"


def test_templates_that_take_strings_get_placeholders_first_unless_the_text_has_them() -> None:
    image = {"type": "image"}

    assert render(STRING, text_part("a"), image, text_part("b")) == "[<image>\na\nb]"
    assert render(STRING, text_part("a <image> b"), image) == "[a <image> b]"
    assert render(STRING, image, text_part("a <image> b"), image) == "[<image>\na <image> b]"
    assert render(STRING, image, image) == "[<image>\n<image>]"


def test_a_message_that_ends_with_an_image_cannot_be_continued() -> None:
    with pytest.raises(BadRequest, match="ends with an image"):
        render(PARTS, text_part("a"), {"type": "image"}, continue_final_message=True)

    assert render(PARTS, {"type": "image"}, text_part("a"), continue_final_message=True) == "(I)a"
