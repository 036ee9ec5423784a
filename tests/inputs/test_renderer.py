"""Rendering of single inputs to token ids, and the errors of invalid inputs."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers.normalizers import BertNormalizer

from cenote.errors import BadRequest, InputTooLong, PoolingError, Unsupported
from cenote.inputs.limits import Limits
from cenote.inputs.renderer import Renderer
from cenote.inputs.renderer_settings import RendererSettings
from cenote.inputs.tokenized_inputs import TokenizedInput
from cenote.inputs.tokenizer import Tokenizer
from cenote.protocol.input_types import Input, PromptEmbeds, TextPair
from cenote.protocol.params import TokenizationParams

CLS, SEP, PAD, UNK = 101, 102, 0, 100
LIMITS = Limits(16)
LETTERS = [1037 + index for index in range(26)]  # the ids of a, b, c, ...


def render_one(
    renderer: Renderer, item: Input, limits: Limits = LIMITS, prompt: str | None = None, **tokenization: Any
) -> TokenizedInput:
    (rendered,) = renderer.render([item], TokenizationParams(**tokenization), limits, prompt)
    if isinstance(rendered, PoolingError):
        raise rendered
    return rendered


def render_ids(renderer: Renderer, item: Input, limits: Limits = LIMITS, **tokenization: Any) -> list[int]:
    return render_one(renderer, item, limits, **tokenization).token_ids.tolist()


def test_special_tokens_are_added_around_a_text(renderer: Renderer) -> None:
    rendered = render_one(renderer, "a b c")

    assert rendered.token_ids.tolist() == [CLS, *LETTERS[:3], SEP]
    assert rendered.num_input_tokens == 5
    assert rendered.type1_start == 5


def test_special_tokens_can_be_left_out(renderer: Renderer) -> None:
    assert render_ids(renderer, "a b c", add_special_tokens=False) == LETTERS[:3]
    assert render_ids(renderer, TextPair("a b", "c"), add_special_tokens=False) == LETTERS[:3]


def test_token_ids_get_no_special_tokens(renderer: Renderer) -> None:
    assert render_ids(renderer, [7, 8, 9]) == [7, 8, 9]
    assert render_ids(renderer, np.array([7, 8, 9], dtype=np.uint16)) == [7, 8, 9]  # type: ignore[arg-type]
    assert render_ids(renderer, range(7, 10)) == [7, 8, 9]


@pytest.mark.parametrize(
    ("lower_case", "requested", "expected"),
    [(False, True, LETTERS[0]), (True, None, LETTERS[0]), (True, False, UNK), (False, None, UNK)],
)
def test_text_is_lowercased_before_tokenization(
    wordpiece: Tokenizer, lower_case: bool, requested: bool | None, expected: int
) -> None:
    raw = tokenizers.Tokenizer.from_str(wordpiece.raw.to_str())
    raw.normalizer = BertNormalizer(lowercase=False)
    renderer = Renderer(Tokenizer(raw, lower_case=lower_case), RendererSettings(vocab_size=30522, hidden_size=384))

    assert render_ids(renderer, "A", do_lower_case=requested) == [CLS, expected, SEP]


# truncation


@pytest.mark.parametrize(
    ("tokenization", "expected"),
    [
        ({"truncate_prompt_tokens": 5}, [CLS, *LETTERS[:3], SEP]),
        ({"truncate_prompt_tokens": 5, "truncation_side": "right"}, [CLS, *LETTERS[:4]]),
        ({"truncate_prompt_tokens": 5, "truncation_side": "left"}, [*LETTERS[6:10], SEP]),
        ({"truncate_prompt_tokens": 5, "add_special_tokens": False}, LETTERS[:5]),
        ({"truncate_prompt_tokens": 5, "truncation_side": "left", "add_special_tokens": False}, LETTERS[5:10]),
        ({"truncate_prompt_tokens": 12}, [CLS, *LETTERS[:10], SEP]),
        ({"truncate_prompt_tokens": 2}, [CLS, SEP]),
        ({"truncate_prompt_tokens": 1}, [CLS]),
        ({"truncate_prompt_tokens": -1}, [CLS, *LETTERS[:10], SEP]),
    ],
    ids=str,
)
def test_a_text_is_truncated_as_requested(
    renderer: Renderer, tokenization: dict[str, Any], expected: list[int]
) -> None:
    rendered = render_one(renderer, "a b c d e f g h i j", **tokenization)

    assert rendered.token_ids.tolist() == expected
    assert rendered.num_input_tokens == (12 if tokenization.get("add_special_tokens", True) else 10)


def test_truncation_on_the_tokenizers_default_side_keeps_special_tokens(wordpiece: Tokenizer) -> None:
    left_truncating = Tokenizer(wordpiece.raw, truncation_side="left")
    renderer = Renderer(left_truncating, RendererSettings(vocab_size=30522, hidden_size=384))

    assert render_ids(renderer, "a b c d e f", truncate_prompt_tokens=5) == [CLS, *LETTERS[3:6], SEP]
    assert render_ids(renderer, [1, 2, 3, 4], truncate_prompt_tokens=2) == [3, 4]


@pytest.mark.parametrize(("side", "expected"), [(None, [1, 2]), ("right", [1, 2]), ("left", [3, 4])])
def test_token_ids_are_sliced(renderer: Renderer, side: Any, expected: list[int]) -> None:
    rendered = render_one(renderer, [1, 2, 3, 4], truncate_prompt_tokens=2, truncation_side=side)

    assert rendered.token_ids.tolist() == expected
    assert rendered.num_input_tokens == 4


@pytest.mark.parametrize("item", ["a b", [7, 8], TextPair("a", "b")], ids=str)
def test_truncation_to_zero_tokens_is_refused(renderer: Renderer, item: Input) -> None:
    with pytest.raises(BadRequest, match="The decoder prompt cannot be empty"):
        render_one(renderer, item, truncate_prompt_tokens=0)


@pytest.mark.parametrize(
    ("tokenization", "message"),
    [
        (
            {"truncate_prompt_tokens": 17},
            "truncate_prompt_tokens=17 cannot be greater than max_model_len - max_output_tokens = 16. "
            "Please request a smaller truncation size.",
        ),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens is -1 or a number of tokens, got -2"),
        ({"truncate_prompt_tokens": "5"}, "truncate_prompt_tokens is -1 or a number of tokens, got '5'"),
        ({"truncate_prompt_tokens": 5.0}, "truncate_prompt_tokens is -1 or a number of tokens, got 5.0"),
        ({"truncate_prompt_tokens": True}, "truncate_prompt_tokens is -1 or a number of tokens, got True"),
        ({"pad_prompt_tokens": "5"}, "pad_prompt_tokens is -1 or a number of tokens, got '5'"),
        ({"truncation_side": "middle"}, "`truncation_side` must be either 'left' or 'right'."),
    ],
    ids=str,
)
def test_invalid_truncation_is_refused_for_every_input(
    renderer: Renderer, tokenization: dict[str, Any], message: str
) -> None:
    rendered = renderer.render(["a", [7]], TokenizationParams(**tokenization), LIMITS)

    assert [item.message for item in rendered if isinstance(item, BadRequest)] == [message, message]


# padding: before truncation and length check


def test_padding_is_appended_after_the_special_tokens(renderer: Renderer) -> None:
    assert render_ids(renderer, "a", pad_prompt_tokens=5) == [CLS, LETTERS[0], SEP, PAD, PAD]
    assert render_ids(renderer, [7], pad_prompt_tokens=3) == [7, PAD, PAD]
    assert render_ids(renderer, "a b c", pad_prompt_tokens=3) == [CLS, *LETTERS[:3], SEP]
    assert len(render_ids(renderer, "a", pad_prompt_tokens=-1)) == 16


def test_padding_of_a_pair_has_the_token_type_of_the_last_token(renderer: Renderer) -> None:
    rendered = render_one(renderer, TextPair("a", "b"), pad_prompt_tokens=8)

    assert rendered.token_ids.tolist() == [CLS, LETTERS[0], SEP, LETTERS[1], SEP, PAD, PAD, PAD]
    assert rendered.type1_start == 3


def test_padding_is_truncated_to_the_limit(renderer: Renderer) -> None:
    assert render_ids(renderer, "a", pad_prompt_tokens=5, truncate_prompt_tokens=4) == [CLS, LETTERS[0], SEP, PAD]
    assert render_ids(renderer, [7], pad_prompt_tokens=10**12, truncate_prompt_tokens=2, truncation_side="left") == [
        PAD,
        PAD,
    ]


def test_padding_beyond_the_model_length_is_refused(renderer: Renderer) -> None:
    with pytest.raises(InputTooLong, match="at least 17 input tokens"):
        render_one(renderer, "a", pad_prompt_tokens=10**12)


def test_padding_needs_a_padding_token(wordpiece: Tokenizer) -> None:
    without_padding = Renderer(Tokenizer(wordpiece.raw), RendererSettings(vocab_size=30522, hidden_size=384))

    with pytest.raises(Unsupported, match="no padding token"):
        render_one(without_padding, "a", pad_prompt_tokens=5)


# lengths


def test_an_input_of_exactly_the_models_length_fits(renderer: Renderer) -> None:
    assert len(render_ids(renderer, "a " * 14)) == 16
    assert len(render_ids(renderer, [7] * 16)) == 16


ADVICE = (
    "Set truncate_prompt_tokens=-1 to cut such inputs to 16 tokens; a server does so by default with "
    "--auto-truncate, and embeds long texts in chunks with --pooler-config.enable_chunked_processing. "
)


@pytest.mark.parametrize(("length", "count"), [(17, "at least 17"), (18, "18"), (40, "40")])
def test_an_input_too_long_is_refused_with_the_numbers(renderer: Renderer, length: int, count: str) -> None:
    message = (
        f"{ADVICE}"
        "This model's maximum context length is 16 tokens. However, you requested 0 output tokens and your prompt "
        f"contains {count} input tokens, for a total of {count} tokens. Please reduce the length of the input prompt "
        f"or the number of requested output tokens. (parameter=input_tokens, value={length})"
    )

    for item in ([7] * length, "a " * (length - 2), TextPair("a", "b " * (length - 4))):
        with pytest.raises(InputTooLong) as caught:
            render_one(renderer, item)
        assert str(caught.value) == message


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(renderer: Renderer) -> None:
    with pytest.raises(InputTooLong) as caught:
        render_one(renderer, "x" * 289)

    assert str(caught.value) == (
        f"{ADVICE}"
        "This model's maximum context length is 16 tokens. However, you requested 0 output tokens and your prompt "
        "contains 289 characters (more than 288 characters, which is the upper bound for 16 input tokens). Please "
        "reduce the length of the input prompt or the number of requested output tokens. "
        "(parameter=input_text, value=289)"
    )


def test_the_error_names_the_option_that_sets_the_limit(renderer: Renderer) -> None:
    limits = Limits(16, "max_embed_len")

    with pytest.raises(InputTooLong, match=r"Input length 40 exceeds max_embed_len 16.*value=40"):
        render_one(renderer, [7] * 40, limits)
    with pytest.raises(InputTooLong, match="Input of 289 characters exceeds max_embed_len 16"):
        render_one(renderer, "x" * 289, limits)


def test_without_a_limit_any_length_is_accepted(renderer: Renderer) -> None:
    unlimited = Limits(16, is_bounded=False, is_chunked=True)

    assert len(render_ids(renderer, "a " * 1000, unlimited)) == 1002
    assert len(render_ids(renderer, "a " * 1000, unlimited, truncate_prompt_tokens=-1)) == 1002
    assert len(render_ids(renderer, "a " * 1000, unlimited, truncate_prompt_tokens=500)) == 500


# huge texts, which are cropped before tokenization


def test_a_word_after_millions_of_spaces_is_found(renderer: Renderer) -> None:
    assert render_ids(renderer, " " * 3_000_000 + "a", truncate_prompt_tokens=-1) == [CLS, LETTERS[0], SEP]


def test_text_after_too_many_spaces_is_not_scanned_and_the_result_is_marked_inexact(renderer: Renderer) -> None:
    for text, side in ((" " * 5_000_000 + "a", "right"), ("a" + " " * 5_000_000, "left")):
        (truncated,) = renderer.render(
            [text], TokenizationParams(truncate_prompt_tokens=-1, truncation_side=side), LIMITS
        )

        assert isinstance(truncated, TokenizedInput) and truncated.token_ids.tolist() == [CLS, SEP]
        assert not truncated.is_input_count_exact


def test_millions_of_words_are_truncated_without_tokenizing_all_of_them(renderer: Renderer) -> None:
    start = time.monotonic()

    for side in (None, "left", "right"):
        assert len(render_ids(renderer, "a b " * 2_000_000, truncate_prompt_tokens=-1, truncation_side=side)) == 16
    assert len(render_ids(renderer, "中文" * 2_000_000, truncate_prompt_tokens=-1)) == 16

    assert time.monotonic() - start < 5  # tokenizing one of them in full takes longer


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("keep", [1, 3, 5, 16])
def test_cropping_before_tokenization_does_not_change_the_result(renderer: Renderer, keep: int, side: Any) -> None:
    long_word = "x" * 200  # unknown as a word, known in pieces
    texts = [
        f"a b {long_word} c d",
        f"{long_word * 100} a b",
        f"a b {long_word * 100}",
        f"a {' ' * 5000} b {long_word} {' ' * 5000} c",
        "unbelievable " * 3000,
    ]
    for text in texts:
        all_ids = renderer.tokenizer.raw.encode(text).ids
        if side is None:
            expected = [*all_ids[:-1][: keep - 1], SEP] if keep > 1 else [CLS]
        else:
            expected = all_ids[:keep] if side == "right" else all_ids[-keep:]

        assert render_ids(renderer, text, truncate_prompt_tokens=keep, truncation_side=side) == expected


# token ids


@pytest.mark.parametrize(
    ("token_ids", "invalid_id"),
    [
        ([5, -1], "-1"),
        ([30522], "30522"),
        ([5, 2**40, 6], str(2**40)),
        ([2**63], str(2**63)),
        ([2**70], str(2**70)),
        ([5, -(2**70)], str(-(2**70))),
        ([2**63, -1], str(2**63)),
    ],
    ids=str,
)
def test_ids_out_of_vocabulary_are_refused_by_id(renderer: Renderer, token_ids: list[int], invalid_id: str) -> None:
    with pytest.raises(BadRequest, match=f"Token id {invalid_id} is out of vocabulary: ids go from 0 to 30521"):
        render_one(renderer, token_ids)


@pytest.mark.parametrize(
    "token_ids",
    [
        [0.5],
        ["a"],
        [[5], [6]],
        [[5], [6, 7]],
        [[5]],
        [None],
        [True, False],
        [2**70, 0.5],
        [5, "a"],
        [5, True],
        [5, 6.0],
    ],
    ids=str,
)
def test_invalid_token_ids_are_refused(renderer: Renderer, token_ids: Any) -> None:
    with pytest.raises(BadRequest, match="Token prompt should be a list of integers"):
        render_one(renderer, token_ids)
    first, second, third = renderer.render([[7, 8], token_ids, (9,)], TokenizationParams(), LIMITS)
    assert isinstance(second, BadRequest)
    assert [first.token_ids.tolist(), third.token_ids.tolist()] == [[7, 8], [9]]  # type: ignore[union-attr]


@pytest.mark.parametrize("token_ids", [[], (), np.array([], dtype=np.int64)], ids=repr)
def test_an_empty_list_of_token_ids_is_refused(renderer: Renderer, token_ids: Any) -> None:
    with pytest.raises(BadRequest, match="The decoder prompt cannot be empty"):
        render_one(renderer, token_ids)


def test_an_empty_text_is_its_special_tokens(renderer: Renderer) -> None:
    assert render_ids(renderer, "") == [CLS, SEP]


def test_an_empty_text_without_special_tokens_is_refused(renderer: Renderer) -> None:
    with pytest.raises(BadRequest, match="The decoder prompt cannot be empty"):
        render_one(renderer, "  ", add_special_tokens=False)


def test_a_token_id_beyond_the_models_embedding_table_fails_its_input(wordpiece: Tokenizer) -> None:
    small = Renderer(wordpiece, RendererSettings(vocab_size=1038, hidden_size=384))

    assert render_ids(small, "a") == [CLS, LETTERS[0], SEP]
    with pytest.raises(
        BadRequest, match="Token id 1038 is out of vocabulary: the model's embedding table ends at 1037"
    ):
        render_one(small, "a b")


# prompt_embeds


def test_prompt_embeds_need_the_option(renderer: Renderer) -> None:
    with pytest.raises(Unsupported, match="You must set `--enable-prompt-embeds` to input `prompt_embeds`."):
        render_one(renderer, PromptEmbeds(torch.zeros(3, 384)))


def test_prompt_embeds_must_have_the_hidden_size(wordpiece: Tokenizer) -> None:
    renderer = Renderer(wordpiece, RendererSettings(vocab_size=30522, hidden_size=384, enable_prompt_embeds=True))

    assert len(render_one(renderer, PromptEmbeds(torch.zeros(3, 384))).token_ids) == 3
    for shape in ((3, 383), (384,), (1, 3, 384)):
        with pytest.raises(BadRequest, match=r"this model expects \[tokens, 384\]"):
            render_one(renderer, PromptEmbeds(torch.zeros(shape)))
    with pytest.raises(InputTooLong, match="at least 17 input tokens"):
        render_one(renderer, PromptEmbeds(torch.zeros(17, 384)))
    with pytest.raises(BadRequest, match="cannot be empty"):
        render_one(renderer, PromptEmbeds(torch.zeros(0, 384)))


# prompts


def test_a_prompt_is_put_before_texts_only(renderer: Renderer) -> None:
    texts = renderer.render(["b", [7]], TokenizationParams(), LIMITS, prompt="a ")

    assert [item.token_ids.tolist() for item in texts if isinstance(item, TokenizedInput)] == [
        [CLS, *LETTERS[:2], SEP],
        [7],
    ]


def test_an_excluded_prompt_is_not_pooled_nor_is_the_special_token_before_it(wordpiece: Tokenizer) -> None:
    renderer = Renderer(wordpiece, RendererSettings(vocab_size=30522, hidden_size=384, exclude_prompt=True))

    assert render_one(renderer, "c", prompt="a b ").num_unpooled == 3
    assert render_one(renderer, "c", prompt="a b ", add_special_tokens=False).num_unpooled == 2
    assert render_one(renderer, "c").num_unpooled == 0
    assert (
        render_one(renderer, "c", prompt="a b ", truncate_prompt_tokens=2).num_unpooled == 1
    )  # something must be left to pool


# errors of single inputs


def test_an_invalid_text_fails_without_affecting_the_others(renderer: Renderer) -> None:
    inputs: list[Input] = ["a", "\ud800", "b", "x" * 1000, [7], [-7], "c", TextPair("a", "\udfff"), TextPair("a", "b")]

    rendered = renderer.render(inputs, TokenizationParams(), LIMITS)

    assert [isinstance(item, BadRequest) for item in rendered] == [
        False, True, False, True, False, True, False, True, False,
    ]  # fmt: skip
    assert [item.token_ids.tolist() for item in rendered if isinstance(item, TokenizedInput)][:2] == [
        [CLS, LETTERS[0], SEP],
        [CLS, LETTERS[1], SEP],
    ]


@pytest.mark.parametrize(
    ("text", "position"), [("\ud800", 0), ("ab\udfff", 2), ("a\ud83d b", 1), ("\U0001f600\udc00", 1)], ids=ascii
)
def test_a_lone_surrogate_is_refused_with_its_position(renderer: Renderer, text: str, position: int) -> None:
    with pytest.raises(
        BadRequest, match=rf"not valid Unicode: a lone surrogate '\\u[0-9a-f]+' at character {position}"
    ):
        render_one(renderer, text)


@pytest.mark.parametrize(
    "text",
    ["\0", "a\0b", "\U0001f600", "👩‍👩‍👧", "e\u0301", "\u0301", "\u202eabc", "\ufeff", "\ufffd", "\uffff", "\x7f", "ﷺ"],
    ids=ascii,
)
def test_unusual_text_is_tokenized_as_by_the_library(renderer: Renderer, text: str) -> None:
    assert render_ids(renderer, text) == renderer.tokenizer.raw.encode(text).ids


def test_a_repeated_text_is_tokenized_once(wordpiece: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = Renderer(wordpiece, RendererSettings(vocab_size=30522, hidden_size=384))
    encoded: list[str] = []
    encode = wordpiece.encode
    monkeypatch.setattr(wordpiece, "encode", lambda texts, **kwargs: encoded.extend(texts) or encode(texts, **kwargs))

    rendered = renderer.render(["a", "b", "a", TextPair("a", "b")], TokenizationParams(), LIMITS)

    assert sorted(encoded) == ["a", "b"]
    assert all(isinstance(item, TokenizedInput) for item in rendered)


# tokenize()


def test_a_text_of_any_length_is_tokenized(renderer: Renderer) -> None:
    assert renderer.tokenize("a b") == [CLS, *LETTERS[:2], SEP]
    assert renderer.tokenize("a b", add_special_tokens=False) == LETTERS[:2]
    assert renderer.tokenize("a " * 5000, add_special_tokens=False) == LETTERS[:1] * 5000
    assert renderer.tokenize("", add_special_tokens=False) == []
    assert renderer.tokenize(TextPair("a", "b")) == [CLS, LETTERS[0], SEP, LETTERS[1], SEP]
    assert renderer.tokenize([7, 8]) == [7, 8]


def test_invalid_input_to_tokenize_is_refused(renderer: Renderer) -> None:
    with pytest.raises(BadRequest, match="lone surrogate"):
        renderer.tokenize("\ud800")
    with pytest.raises(BadRequest, match="Token id 30522 is out of vocabulary"):
        renderer.tokenize([30522])


# num_input_tokens


@pytest.mark.parametrize("item", ["a " * 100_000, TextPair("a", "b " * 100_000)], ids=["text", "pair"])
def test_a_huge_truncated_input_reports_an_inexact_token_count(renderer: Renderer, item: Input) -> None:
    truncated = render_one(renderer, item, truncate_prompt_tokens=-1)

    assert not truncated.is_input_count_exact
    assert LIMITS.max_tokens < truncated.num_input_tokens < 100_000


@pytest.mark.parametrize("item", ["a " * 100, TextPair("a", "b " * 100), [7] * 100], ids=["text", "pair", "ids"])
def test_an_input_that_is_tokenized_and_then_truncated_reports_an_exact_count(renderer: Renderer, item: Input) -> None:
    truncated = render_one(renderer, item, truncate_prompt_tokens=-1)

    assert truncated.is_input_count_exact
    assert truncated.num_input_tokens >= 100
