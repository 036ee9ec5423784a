"""MultimodalProcessor with an image processor that makes a few tokens per image."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import PIL.Image
import pytest
import tokenizers

from cenote.errors import BadRequest, InputTooLong, PoolingError, Unsupported
from cenote.inputs.chat import ChatSettings
from cenote.inputs.content_parts import parse_part
from cenote.inputs.images.image_processor import ImageProcessor, repeat_token
from cenote.inputs.images.multimodal_processor import MultimodalProcessor, has_images
from cenote.inputs.limits import Limits
from cenote.inputs.renderer import Renderer
from cenote.inputs.renderer_settings import RendererSettings
from cenote.inputs.tokenized_inputs import TokenizedInput
from cenote.inputs.tokenizer import Tokenizer
from cenote.models.image_spec import ImageSpec, ProcessorFiles
from cenote.protocol.images import ImageSource, ProcessedImage
from cenote.protocol.input_types import ContentParts, Conversation, Input, MultimodalPair, MultimodalPrompt, TextPair
from cenote.protocol.params import TokenizationParams

WORDS = ["[UNK]", "<image>", "<on>", "<off>", "look", "at", "this", "and", "that"]
IMAGE, ON, OFF = 1, 2, 3
TEMPLATE = (
    "{% for message in messages %}{% for part in message.content %}"
    "{{ '<on><image><off>' if part.type == 'image' else part.text }} {% endfor %}{% endfor %}"
)
RED = {"type": "image_url", "image_url": {"url": "red"}}


class RowImageProcessor(ImageProcessor):
    """Make one token for every two rows of pixels."""

    SUPPORTED_OPTIONS = ("rows",)

    def _preprocess(self, image: PIL.Image.Image, options: Mapping[str, Any], param_path: str) -> ProcessedImage:
        count = image.height // int(options.get("rows", 2))
        self.check_num_tokens(count, image, param_path)
        ids, is_embed = repeat_token(IMAGE, count)
        key = self.compute_cache_key(image, options)
        return ProcessedImage(np.zeros((count, 3)), ((1, count),), ids, is_embed, (image.height, image.width), key)


def load(image: ImageSource) -> PIL.Image.Image:
    return PIL.Image.new("RGB", (4, 8 if image.source == "red" else 4), str(image.source))


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(WORDS)}, "[UNK]"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    raw.add_special_tokens(WORDS[1:4])
    spec = ImageSpec(
        processor="strict", placeholder_token="<image>", placeholder_prefix="<on>", placeholder_suffix="<off>"
    )
    processor = RowImageProcessor(spec, ProcessorFiles(), raw.token_to_id, max_tokens=16, options={})
    multimodal = MultimodalProcessor(processor, load, max_images=2)
    chat = ChatSettings(server_template=TEMPLATE, image_placeholder=multimodal.placeholder)
    return Renderer(
        Tokenizer(raw),
        RendererSettings(vocab_size=9, hidden_size=4, chat_settings=chat, has_pair_separator=False),
        multimodal,
    )


def render_one(
    renderer: Renderer, item: Input, options: Mapping[str, Any] | None = None, **tokenization: Any
) -> TokenizedInput:
    assert renderer.multimodal is not None
    processed = renderer.multimodal.process(item, options or {})
    (tokenized,) = renderer.render([processed], TokenizationParams(**tokenization), Limits(16))
    if isinstance(tokenized, PoolingError):
        raise tokenized
    assert isinstance(tokenized, TokenizedInput)
    return tokenized


def render_ids(renderer: Renderer, item: Input, **tokenization: Any) -> list[int]:
    return render_one(renderer, item, **tokenization).token_ids.tolist()  # type: ignore[no-any-return]


def test_a_placeholder_is_replaced_by_the_tokens_of_its_image(renderer: Renderer) -> None:
    tokenized = render_one(
        renderer, MultimodalPrompt("look <image> and <image> that", [ImageSource("red"), ImageSource("blue")])
    )

    assert tokenized.token_ids.tolist() == [4, IMAGE, IMAGE, IMAGE, IMAGE, 7, IMAGE, IMAGE, 8]
    assert tokenized.images is not None
    assert tokenized.images.token_indices.tolist() == [1, 2, 3, 4, 6, 7]
    assert tokenized.num_input_tokens == 9


def test_placeholders_work_in_token_ids_too(renderer: Renderer) -> None:
    assert render_ids(renderer, MultimodalPrompt([4, IMAGE, 8], [ImageSource("blue")])) == [4, IMAGE, IMAGE, 8]


def test_the_chat_template_decides_where_images_are(renderer: Renderer) -> None:
    content = ["look", {"type": "image_url", "image_url": "blue"}, {"type": "text", "text": "that"}]

    tokenized = render_ids(renderer, Conversation([{"role": "user", "content": content}]))

    assert tokenized == [4, ON, IMAGE, IMAGE, OFF, 8]


def test_without_a_template_images_come_before_the_text(renderer: Renderer) -> None:
    parts = ContentParts(["look", {"type": "image", "image": "blue"}])  # type: ignore[list-item]  # a plain string is a part too

    assert render_ids(renderer, parts) == [ON, IMAGE, IMAGE, OFF, 4]


def test_a_placeholder_in_the_text_is_not_added_again(renderer: Renderer) -> None:
    parts = ContentParts([{"type": "text", "text": "look <image> that"}, {"type": "image", "image": "blue"}])

    assert render_ids(renderer, parts) == [4, IMAGE, IMAGE, 8]


def test_both_texts_of_a_pair_may_have_images(renderer: Renderer) -> None:
    pair = MultimodalPair(
        ContentParts([{"type": "text", "text": "look"}, RED]), ContentParts([{"type": "image", "image": "blue"}])
    )

    assert render_ids(renderer, pair) == [ON, *[IMAGE] * 4, OFF, 4, ON, *[IMAGE] * 2, OFF]


def test_text_inputs_need_no_multimodal_processing(renderer: Renderer) -> None:
    assert not has_images("look") and not has_images(Conversation([{"role": "user", "content": "look"}]))
    assert render_ids(renderer, ContentParts([{"type": "text", "text": "look at"}])) == [4, 5]
    assert render_ids(renderer, TextPair("look", " at")) == [4, 5]


def test_truncation_removes_text_but_never_an_image(renderer: Renderer) -> None:
    item = MultimodalPrompt("<image> look at this and that", [ImageSource("red")])

    tokenized = render_one(renderer, item, truncate_prompt_tokens=6)

    assert tokenized.token_ids.tolist() == [IMAGE] * 4 + [4, 5]
    assert tokenized.num_input_tokens == 9
    with pytest.raises(BadRequest, match="1 images were given.*truncation must not remove"):
        render_one(renderer, item, truncate_prompt_tokens=6, truncation_side="left")
    with pytest.raises(InputTooLong, match="images of this prompt are 4 tokens.*do not fit in 3"):
        render_one(renderer, item, truncate_prompt_tokens=3)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (MultimodalPrompt("look", [ImageSource("red")]), "0 placeholders '<image>', but 1 images"),
        (MultimodalPrompt("<image> <image>", [ImageSource("red")]), "2 placeholders '<image>', but 1 images"),
        (
            Conversation([{"role": "user", "content": [RED, RED, RED]}]),
            r"At most 2 image\(s\).*got 3.*content\[2\] is one too",
        ),
        (
            Conversation([{"role": "user", "content": [RED, {"type": "smell"}]}]),
            r"content\[1\].type: invalid value 'smell'",
        ),
        (
            Conversation([{"role": "user", "content": [RED, {"type": "video_url"}]}]),
            r"content\[1\] is of type video_url",
        ),
        (
            ContentParts([{"type": "image_url", "image_url": {}}]),
            r"content\[0\] is of type image_url, but has no image_url",
        ),
    ],
)
def test_an_input_with_invalid_images_is_refused_with_the_path_of_the_part(
    renderer: Renderer, item: Input, message: str
) -> None:
    with pytest.raises(PoolingError, match=message):
        render_one(renderer, item)


def test_a_request_may_set_supported_options_only(renderer: Renderer) -> None:
    item = MultimodalPrompt("<image>", [ImageSource("red")])

    assert len(render_one(renderer, item, {"rows": 1}).token_ids) == 8
    assert len(render_one(renderer, MultimodalPrompt("<image>", [ImageSource("red")], {"rows": 4})).token_ids) == 2
    with pytest.raises(BadRequest, match="'columns'.*supported: rows"):
        render_one(renderer, item, {"columns": 1})
    with pytest.raises(BadRequest, match="4 x 8 pixels cannot be processed with"):
        render_one(renderer, item, {"rows": 0})


def test_the_cache_key_depends_on_the_image_and_the_options(renderer: Renderer) -> None:
    def key(color: str, options: Mapping[str, Any]) -> bytes:
        tokenized = render_one(renderer, MultimodalPrompt("<image>", [ImageSource(color)]), options)
        assert tokenized.images is not None
        return tokenized.images.cache_key

    assert key("red", {}) == key("red", {})
    assert len({key("red", {}), key("blue", {}), key("green", {}), key("red", {"rows": 1})}) == 4


def test_a_single_modality_model_refuses_text_with_an_image(renderer: Renderer) -> None:
    assert renderer.multimodal is not None
    spec = ImageSpec(processor="strict", placeholder_token="", single_modality_name="CLIP")
    processor = RowImageProcessor(spec, ProcessorFiles(), lambda token: None, max_tokens=16, options={})
    single_modality = Renderer(
        renderer.tokenizer, RendererSettings(vocab_size=9, hidden_size=4), MultimodalProcessor(processor, load, 2)
    )

    tokenized = render_one(single_modality, MultimodalPrompt("", [ImageSource("blue")]))

    assert tokenized.token_ids.tolist() == [IMAGE, IMAGE]
    assert tokenized.images is not None and tokenized.images.token_indices.tolist() == [0, 1]
    with pytest.raises(Unsupported, match="CLIP accepts text-only or image-only inputs, not both!"):
        render_one(single_modality, MultimodalPrompt("look", [ImageSource("blue")]))
    with pytest.raises(Unsupported, match="Got 2 images"):
        render_one(single_modality, MultimodalPrompt("", [ImageSource("blue"), ImageSource("red")]))


def test_a_text_model_names_the_image_part_it_refuses(renderer: Renderer) -> None:
    text_only = Renderer(renderer.tokenizer, RendererSettings(vocab_size=9, hidden_size=4, architecture="BertModel"))

    def refusal(item: Input) -> str:
        (error,) = text_only.render([item], TokenizationParams(), Limits(16))
        assert isinstance(error, Unsupported)
        return error.message

    assert "documents.0.content[1] is an image" in refusal(ContentParts(["look", RED], "documents.0.content"))  # type: ignore[list-item]
    assert "MultiModalParam is not supported for BertModel" in refusal(ContentParts([RED]))
    assert "this model reads text only" in refusal(MultimodalPrompt("look", [ImageSource("red")]))
    (text,) = text_only.render([ContentParts([{"type": "text", "text": "look"}])], TokenizationParams(), Limits(16))
    assert np.array_equal(text.token_ids, [4])


@pytest.mark.parametrize("kind", [[], {}, 5, None])
def test_a_part_of_unknown_type_is_refused_when_processed(renderer: Renderer, kind: Any) -> None:
    conversation = Conversation([{"role": "user", "content": [{"type": kind, "image": "red"}, {"type": kind}]}])

    assert has_images(conversation)
    with pytest.raises(BadRequest, match=r"messages\[0\].content\[.\].type: invalid value"):
        render_one(renderer, conversation)


def test_invalid_messages_have_no_images() -> None:
    assert not has_images(Conversation(None))  # type: ignore[arg-type]  # callers of the Python API can pass anything


def test_an_array_is_an_image_of_a_conversation(renderer: Renderer) -> None:
    part = parse_part({"type": "image", "image": np.zeros((4, 4, 3), dtype=np.uint8)}, "content[0]")

    assert isinstance(part, ImageSource) and part.param_path == "content[0]"


def test_unnamed_images_are_named_by_their_index(renderer: Renderer) -> None:
    content = [RED, {"type": "image_url", "image_url": "no colour"}]

    with pytest.raises(ValueError, match="no colour"):
        render_one(renderer, Conversation([{"role": "user", "content": content}], image_names=("the first",)))


def test_models_that_take_one_image_do_not_load_the_others(renderer: Renderer) -> None:
    assert renderer.multimodal is not None
    processor = copy(renderer.multimodal.image_processor)
    processor.spec = replace(processor.spec, placeholder_token="", single_modality_name="CLIP")
    loaded: list[ImageSource] = []

    with pytest.raises(Unsupported, match="CLIP accepts .* Got 2 images"):
        MultimodalProcessor(processor, loaded.append, 9).process(
            MultimodalPrompt("", [ImageSource("red"), ImageSource("blue")]), {}
        )  # type: ignore[arg-type]

    assert not loaded
    assert isinstance(
        MultimodalProcessor(processor, load, 9).process(MultimodalPrompt("", [ImageSource("red")]), {"rows": 1}),
        MultimodalPrompt,
    )


def test_a_failure_of_one_input_leaves_the_others(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert renderer.multimodal is not None
    monkeypatch.setattr(type(renderer.multimodal.image_processor), "arrange_prompt", lambda *_: 1 / 0)
    with_image = renderer.multimodal.process(MultimodalPrompt("<image>", [ImageSource("red")]), {})

    failed, text = renderer.render([with_image, "look at"], TokenizationParams(), Limits(16))

    assert isinstance(failed, PoolingError) and "ZeroDivisionError" in str(failed)
    assert isinstance(text, TokenizedInput) and text.token_ids.tolist() == [4, 5]


def test_an_image_repeated_in_a_request_is_processed_once(renderer: Renderer) -> None:
    assert renderer.multimodal is not None
    loaded: list[Any] = []

    def load_and_count(image: ImageSource) -> PIL.Image.Image:
        loaded.append(image.source)
        return load(image)

    multimodal = replace(renderer.multimodal, load_image=load_and_count, image_cache={})
    query = ContentParts([RED])
    pairs = [multimodal.process(MultimodalPair(query, text), {}) for text in ("this", "that")]
    others = [
        multimodal.process(MultimodalPrompt("<image>", [ImageSource("red")], options), {})
        for options in ({}, {"rows": 4})
    ]

    assert loaded == ["red", "red"]  # the last one has other options
    first, second = (pair.images[0] for pair in pairs if isinstance(pair, TextPair))
    assert first is second
    assert [other.images[0].num_embeds for other in others if isinstance(other, MultimodalPrompt)] == [4, 2]  # type: ignore[union-attr]
