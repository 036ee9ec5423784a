"""The parts of a content, as clients of several kinds write them, and conversations that have images among theirs."""

from __future__ import annotations

from typing import Any

import pytest

from cenote.errors import BadRequest, Unsupported
from cenote.inputs.chat import ChatSettings, chat_text
from cenote.inputs.content_parts import as_part, is_image, plain_text
from cenote.protocol.images import Image
from cenote.protocol.input_types import Chat

WHERE = "messages[3].content[2]"
MARK = "<image>"
STRING = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
PARTS = """{% for m in messages %}{% for part in m.content -%}
{{ '(I)' if part.type == 'image' else part.text }}{% endfor %};{% endfor %}"""


def text(template: str, *parts: Any, **options: Any) -> str:
    chat = Chat([{"role": "user", "content": list(parts)}], **options)
    return chat_text(chat, ChatSettings(tokenizer_template=template, placeholder=MARK))


def said(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


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
def test_every_way_to_write_an_image_is_one(part: dict[str, Any]) -> None:
    found = as_part(part, WHERE)

    assert is_image(part)
    assert isinstance(found, Image) and (found.source, found.where) == ("data:x", WHERE)


@pytest.mark.parametrize("part", ["a", said("a"), {"type": "input_text", "text": "a"}, {"text": "a"}])
def test_every_way_to_write_a_text_is_one(part: Any) -> None:
    assert as_part(part, WHERE) == "a"
    assert not is_image(part)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (7, "is an object with a type, not int"),
        ({}, "is None; there are: text, "),
        ({"type": ["text"]}, "there are: text, "),
        ({"type": "picture"}, "is 'picture'; there are: text, "),
        ({"type": "text"}, "text is a string, not NoneType"),
        ({"type": "text", "text": 5}, "text is a string, not int"),
        ({"type": "image_url"}, "has no image_url"),
        ({"type": "image_url", "image_url": {}}, "has no image_url"),
        ({"type": "image_url", "image_url": {"url": ""}}, "has no image_url"),
        ({"type": "image", "image_url": "data:x"}, "has no image"),
        ({"type": "video_url", "video_url": {"url": "data:x"}}, "reads text and images only"),
        ({"type": "image_embeds", "image_embeds": "AA=="}, "reads text and images only"),
    ],
)
def test_what_is_wrong_with_a_part_is_said_with_its_name(part: Any, words: str) -> None:
    with pytest.raises(BadRequest) as refused:
        as_part(part, WHERE)

    assert refused.value.message.startswith(WHERE) and words in refused.value.message


def test_a_model_of_text_reads_the_lines_and_refuses_images() -> None:
    assert plain_text([said("a"), "b"], "documents[0].content", "BertModel") == "a\nb"
    with pytest.raises(Unsupported, match=r"not supported for BertModel: documents\[0\]\.content\[1\] is an image"):
        plain_text([said("a"), {"image": "data:x"}], "documents[0].content", "BertModel")


def test_templates_of_parts_get_images_where_they_stand() -> None:
    assert text(PARTS, said("a"), {"type": "image"}, said("b")) == "a(I)b;"


def test_templates_of_texts_get_images_before_all_else_unless_they_are_marked() -> None:
    image = {"type": "image"}

    assert text(STRING, said("a"), image, said("b")) == "[<image>\na\nb]"
    assert text(STRING, said("a <image> b"), image) == "[a <image> b]"
    assert text(STRING, image, said("a <image> b"), image) == "[<image>\na <image> b]"
    assert text(STRING, image, image) == "[<image>\n<image>]"


def test_a_message_that_ends_with_an_image_cannot_be_continued() -> None:
    with pytest.raises(BadRequest, match="ends with an image"):
        text(PARTS, said("a"), {"type": "image"}, continue_final_message=True)

    assert text(PARTS, {"type": "image"}, said("a"), continue_final_message=True) == "(I)a"
