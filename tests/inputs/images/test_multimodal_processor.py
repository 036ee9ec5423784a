"""Images among the inputs, with a reader that makes every image a few tokens."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import PIL.Image
import pytest
import tokenizers
import torch

from cenote.errors import BadRequest, InputTooLong, PoolingError, Unsupported
from cenote.inputs.chat import ChatSettings
from cenote.inputs.content_parts import as_part
from cenote.inputs.images.image_processor import ImageReader, repeated
from cenote.inputs.images.multimodal_processor import Seeing, has_images
from cenote.inputs.limits import Limits
from cenote.inputs.renderer import Renderer
from cenote.inputs.tokenized_inputs import Rendered
from cenote.inputs.tokenizer import Tokenizer
from cenote.models.vision_spec import ImageSpec, ProcessorFiles
from cenote.protocol.images import Image, Picture
from cenote.protocol.input_types import Chat, Input, Pair, Parts, PartsPair, Pictured
from cenote.protocol.requests import Tokenization

WORDS = ["[UNK]", "<image>", "<on>", "<off>", "look", "at", "this", "and", "that"]
IMAGE, ON, OFF = 1, 2, 3
TEMPLATE = (
    "{% for message in messages %}{% for part in message.content %}"
    "{{ '<on><image><off>' if part.type == 'image' else part.text }} {% endfor %}{% endfor %}"
)
RED = {"type": "image_url", "image_url": {"url": "red"}}


class Strict(ImageReader):
    """A token for every two rows of pixels."""

    KNOWN = ("rows",)

    def picture(self, image: PIL.Image.Image, options: Mapping[str, Any], where: str) -> Picture:
        count = image.height // int(options.get("rows", 2))
        self.check_tokens(count, image, where)
        ids, seen = repeated(IMAGE, count)
        key = self.key(image, options)
        return Picture(torch.zeros(count, 3), ((1, count),), ids, seen, (image.height, image.width), key)


def load(image: Image) -> PIL.Image.Image:
    return PIL.Image.new("RGB", (4, 8 if image.source == "red" else 4), str(image.source))


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(WORDS)}, "[UNK]"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    raw.add_special_tokens(WORDS[1:4])
    spec = ImageSpec(reader="strict", mark="<image>", before="<on>", after="<off>")
    reader = Strict(spec, ProcessorFiles(), raw.token_to_id, max_tokens=16, options={})
    seeing = Seeing(reader, load, max_images=2)
    chat = ChatSettings(server_template=TEMPLATE, placeholder=seeing.placeholder)
    return Renderer(Tokenizer(raw), vocab_size=9, hidden_size=4, chat=chat, seeing=seeing, pairs_with_separator=False)


def one(renderer: Renderer, item: Input, options: Mapping[str, Any] | None = None, **how: Any) -> Rendered:
    assert renderer.seeing is not None
    read = renderer.seeing.read(item, options or {})
    (found,) = renderer.render([read], Tokenization(**how), Limits(16))
    if isinstance(found, PoolingError):
        raise found
    assert isinstance(found, Rendered)
    return found


def ids(renderer: Renderer, item: Input, **how: Any) -> list[int]:
    return one(renderer, item, **how).token_ids.tolist()  # type: ignore[no-any-return]


def test_a_mark_becomes_the_tokens_of_its_image(renderer: Renderer) -> None:
    found = one(renderer, Pictured("look <image> and <image> that", [Image("red"), Image("blue")]))

    assert found.token_ids.tolist() == [4, IMAGE, IMAGE, IMAGE, IMAGE, 7, IMAGE, IMAGE, 8]
    assert found.sight is not None
    assert found.sight.rows.tolist() == [1, 2, 3, 4, 6, 7]
    assert found.num_input_tokens == 9


def test_token_ids_have_marks_as_texts_do(renderer: Renderer) -> None:
    assert ids(renderer, Pictured([4, IMAGE, 8], [Image("blue")])) == [4, IMAGE, IMAGE, 8]


def test_a_conversation_has_its_images_where_its_template_writes_them(renderer: Renderer) -> None:
    content = ["look", {"type": "image_url", "image_url": "blue"}, {"type": "text", "text": "that"}]

    found = ids(renderer, Chat([{"role": "user", "content": content}]))

    assert found == [4, ON, IMAGE, IMAGE, OFF, 8]


def test_parts_without_a_template_have_their_images_first(renderer: Renderer) -> None:
    parts = Parts(["look", {"type": "image", "image": "blue"}])  # type: ignore[list-item]  # a text is a part too

    assert ids(renderer, parts) == [ON, IMAGE, IMAGE, OFF, 4]


def test_a_mark_that_the_text_has_is_not_written_again(renderer: Renderer) -> None:
    parts = Parts([{"type": "text", "text": "look <image> that"}, {"type": "image", "image": "blue"}])

    assert ids(renderer, parts) == [4, IMAGE, IMAGE, 8]


def test_both_sides_of_a_pair_may_have_images(renderer: Renderer) -> None:
    pair = PartsPair(Parts([{"type": "text", "text": "look"}, RED]), Parts([{"type": "image", "image": "blue"}]))

    assert ids(renderer, pair) == [ON, *[IMAGE] * 4, OFF, 4, ON, *[IMAGE] * 2, OFF]


def test_texts_among_images_are_what_they_always_were(renderer: Renderer) -> None:
    assert not has_images("look") and not has_images(Chat([{"role": "user", "content": "look"}]))
    assert ids(renderer, Parts([{"type": "text", "text": "look at"}])) == [4, 5]
    assert ids(renderer, Pair("look", " at")) == [4, 5]


def test_the_text_is_cut_and_never_an_image(renderer: Renderer) -> None:
    item = Pictured("<image> look at this and that", [Image("red")])

    found = one(renderer, item, truncate_prompt_tokens=6)

    assert found.token_ids.tolist() == [IMAGE] * 4 + [4, 5]
    assert found.num_input_tokens == 9
    with pytest.raises(BadRequest, match="1 images were given.*must not lose it"):
        one(renderer, item, truncate_prompt_tokens=6, truncation_side="left")
    with pytest.raises(InputTooLong, match="images of this prompt are 4 tokens.*no room in 3"):
        one(renderer, item, truncate_prompt_tokens=3)


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (Pictured("look", [Image("red")]), "0 times '<image>', and 1 images"),
        (Pictured("<image> <image>", [Image("red")]), "2 times '<image>', and 1 images"),
        (Chat([{"role": "user", "content": [RED, RED, RED]}]), r"At most 2 image\(s\).*got 3.*content\[2\] is one too"),
        (Chat([{"role": "user", "content": [RED, {"type": "smell"}]}]), r"content\[1\].type is 'smell'"),
        (Chat([{"role": "user", "content": [RED, {"type": "video_url"}]}]), r"content\[1\] is of type video_url"),
        (Parts([{"type": "image_url", "image_url": {}}]), r"content\[0\] is of type image_url, but has no image_url"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_name(renderer: Renderer, item: Input, words: str) -> None:
    with pytest.raises(PoolingError, match=words):
        one(renderer, item)


def test_options_of_a_request_are_known_by_name(renderer: Renderer) -> None:
    item = Pictured("<image>", [Image("red")])

    assert len(one(renderer, item, {"rows": 1}).token_ids) == 8
    assert len(one(renderer, Pictured("<image>", [Image("red")], {"rows": 4})).token_ids) == 2
    with pytest.raises(BadRequest, match="'columns'.*there are: rows"):
        one(renderer, item, {"columns": 1})
    with pytest.raises(BadRequest, match="4 x 8 pixels cannot be read with"):
        one(renderer, item, {"rows": 0})


def test_the_same_image_has_the_same_key_only_where_it_is_read_in_the_same_way(renderer: Renderer) -> None:
    def key(color: str, options: Mapping[str, Any]) -> bytes:
        found = one(renderer, Pictured("<image>", [Image(color)]), options)
        assert found.sight is not None
        return found.sight.key

    assert key("red", {}) == key("red", {})
    assert len({key("red", {}), key("blue", {}), key("green", {}), key("red", {"rows": 1})}) == 4


def test_a_model_that_reads_either_takes_no_words_with_an_image(renderer: Renderer) -> None:
    assert renderer.seeing is not None
    spec = ImageSpec(reader="strict", mark="", alone="CLIP")
    reader = Strict(spec, ProcessorFiles(), lambda token: None, max_tokens=16, options={})
    alone = Renderer(renderer.tokenizer, vocab_size=9, hidden_size=4, seeing=Seeing(reader, load, 2))

    found = one(alone, Pictured("", [Image("blue")]))

    assert found.token_ids.tolist() == [IMAGE, IMAGE]
    assert found.sight is not None and found.sight.rows.tolist() == [0, 1]
    with pytest.raises(Unsupported, match="CLIP accepts text-only or image-only inputs, not both!"):
        one(alone, Pictured("look", [Image("blue")]))
    with pytest.raises(Unsupported, match="Got 2 images"):
        one(alone, Pictured("", [Image("blue"), Image("red")]))


def test_a_model_without_eyes_names_the_part_that_it_cannot_read(renderer: Renderer) -> None:
    blind = Renderer(renderer.tokenizer, vocab_size=9, hidden_size=4, architecture="BertModel")

    def refusal(item: Input) -> str:
        (found,) = blind.render([item], Tokenization(), Limits(16))
        assert isinstance(found, Unsupported)
        return found.message

    assert "documents.0.content[1] is an image" in refusal(Parts(["look", RED], "documents.0.content"))  # type: ignore[list-item]
    assert "MultiModalParam is not supported for BertModel" in refusal(Parts([RED]))
    assert "this model reads text only" in refusal(Pictured("look", [Image("red")]))
    (text,) = blind.render([Parts([{"type": "text", "text": "look"}])], Tokenization(), Limits(16))
    assert np.array_equal(text.token_ids, [4])


@pytest.mark.parametrize("kind", [[], {}, 5, None])
def test_a_part_of_no_kind_is_refused_when_it_is_read(renderer: Renderer, kind: Any) -> None:
    chat = Chat([{"role": "user", "content": [{"type": kind, "image": "red"}, {"type": kind}]}])

    assert has_images(chat)
    with pytest.raises(BadRequest, match=r"messages\[0\].content\[.\].type is"):
        one(renderer, chat)


def test_messages_that_are_none_have_no_images() -> None:
    assert not has_images(Chat(None))  # type: ignore[arg-type]  # as programs may give them


def test_an_array_is_an_image_of_a_conversation(renderer: Renderer) -> None:
    part = as_part({"type": "image", "image": np.zeros((4, 4, 3), dtype=np.uint8)}, "content[0]")

    assert isinstance(part, Image) and part.where == "content[0]"


def test_images_without_a_name_of_their_own_are_called_by_their_places(renderer: Renderer) -> None:
    content = [RED, {"type": "image_url", "image_url": "no colour"}]

    with pytest.raises(ValueError, match="no colour"):
        one(renderer, Chat([{"role": "user", "content": content}], names=("the first",)))


def test_models_that_read_one_image_do_not_look_at_the_others(renderer: Renderer) -> None:
    assert renderer.seeing is not None
    reader = copy(renderer.seeing.reader)
    reader.spec = replace(reader.spec, mark="", alone="CLIP")
    looked: list[Image] = []

    with pytest.raises(Unsupported, match="CLIP accepts .* Got 2 images"):
        Seeing(reader, looked.append, 9).read(Pictured("", [Image("red"), Image("blue")]), {})  # type: ignore[arg-type]

    assert not looked
    assert isinstance(Seeing(reader, load, 9).read(Pictured("", [Image("red")]), {"rows": 1}), Pictured)


def test_a_failure_of_one_input_leaves_the_others(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert renderer.seeing is not None
    monkeypatch.setattr(type(renderer.seeing.reader), "laid_out", lambda *_: 1 / 0)
    pictured = renderer.seeing.read(Pictured("<image>", [Image("red")]), {})

    failed, text = renderer.render([pictured, "look at"], Tokenization(), Limits(16))

    assert isinstance(failed, PoolingError) and "ZeroDivisionError" in str(failed)
    assert isinstance(text, Rendered) and text.token_ids.tolist() == [4, 5]


def test_what_one_request_has_twice_is_looked_at_once(renderer: Renderer) -> None:
    assert renderer.seeing is not None
    looked: list[Any] = []

    def counting(image: Image) -> PIL.Image.Image:
        looked.append(image.source)
        return load(image)

    seeing = replace(renderer.seeing, load=counting, known={})
    query = Parts([RED])
    pairs = [seeing.read(PartsPair(query, text), {}) for text in ("this", "that")]
    others = [seeing.read(Pictured("<image>", [Image("red")], options), {}) for options in ({}, {"rows": 4})]

    assert looked == ["red", "red"]  # the last one is to be read in another way
    first, second = (pair.pictures[0] for pair in pairs if isinstance(pair, Pair))
    assert first is second
    assert [other.images[0].num_rows for other in others if isinstance(other, Pictured)] == [4, 2]  # type: ignore[union-attr]
