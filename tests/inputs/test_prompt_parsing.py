"""Prompt formats of the Python API, and tokenization_kwargs."""

from __future__ import annotations

import logging
from collections import UserDict
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
import torch

from cenote.errors import BadRequest
from cenote.inputs.prompt_parsing import parse_prompts, parse_tokenization_kwargs
from cenote.protocol.input_types import MultimodalPrompt, PromptEmbeds
from cenote.protocol.params import TokenizationParams


@pytest.mark.parametrize(
    ("prompts", "inputs"),
    [
        ("a text", ["a text"]),
        ("", [""]),
        ([5, 6], [[5, 6]]),
        ((5, 6), [(5, 6)]),
        (range(5, 7), [range(5, 7)]),
        ([np.int64(5), np.int32(6)], [[5, 6]]),
        (np.array([5, 6]), [[5, 6]]),
        (np.array([[5, 6], [7, 8]]), [[5, 6], [7, 8]]),
        (np.array(["a", "b"]), ["a", "b"]),
        (["a", "b"], ["a", "b"]),
        (("a", [5]), ["a", [5]]),
        ([[5], [6, 7]], [[5], [6, 7]]),
        ([[]], [[]]),
        ((word for word in "ab"), ["a", "b"]),
        ({"prompt": "a"}, ["a"]),
        (UserDict(prompt="a"), ["a"]),
        ({"prompt": "a", "multi_modal_data": None, "cache_salt": "x"}, ["a"]),
        ({"prompt_token_ids": [5, 6]}, [[5, 6]]),
        ({"prompt_token_ids": [5, 6], "prompt": "ignored"}, [[5, 6]]),
        ([{"prompt": "a"}, {"prompt_token_ids": (5,)}, "b", [6]], ["a", (5,), "b", [6]]),
    ],
    ids=lambda value: "a generator" if isinstance(value, Generator) else str(value),
)
def test_every_form_of_prompt_is_parsed(prompts: Any, inputs: list[Any]) -> None:
    assert parse_prompts(prompts) == inputs


@pytest.mark.parametrize(
    ("dtype", "parsed"), [(torch.float32, "float32"), (torch.bfloat16, "float32"), (torch.float16, "float16")]
)
def test_prompt_embeds_become_arrays(dtype: torch.dtype, parsed: str) -> None:
    rows = torch.linspace(-3, 3, 24, dtype=dtype, requires_grad=True).view(3, 8)

    (prompt,) = parse_prompts({"prompt_embeds": rows})

    assert isinstance(prompt, PromptEmbeds)
    assert prompt.embeds.dtype == parsed and prompt.embeds.tolist() == rows.tolist()


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "You must pass at least one prompt"),
        ((), "You must pass at least one prompt"),
        (np.array([]), "You must pass at least one prompt"),
        (None, "Prompt should be a string, list of tokens, or dictionary, not NoneType"),
        (5, "Prompt should be a string, list of tokens, or dictionary, not int"),
        (["a", 5], "Prompt should be a string, list of tokens, or dictionary, not int"),
        (["a", None], "Prompt should be a string, list of tokens, or dictionary, not NoneType"),
        ([True], "Prompt should be a string, list of tokens, or dictionary, not bool"),
        (np.array([0.5]), "Prompt should be a string, list of tokens, or dictionary, not float"),
        (b"bytes", "Prompt should be a string, list of tokens, or dictionary, not int"),
        ([np.array([0.5])], "Token prompt should be a list of integers"),
        ([np.array([[5]])], "Token prompt should be a list of integers"),
        ({"prompt_token_ids": "five"}, "Token prompt should be a list of integers"),
        ({"prompt_token_ids": {5: 6}}, "Token prompt should be a list of integers"),
        ({"prompt_token_ids": 5}, "Token prompt should be a list of integers"),
        ({"prompt": 5}, "Prompt text should be a string"),
        ({"prompt": None}, "Prompt text should be a string"),
        ({}, "Prompt dictionary must contain text, tokens, or embeddings"),
        ({"text": "a"}, "Prompt dictionary must contain text, tokens, or embeddings"),
        ({"prompt_token_ids": [1, 2], "token_type_ids": [0, 1]}, "token_type_ids of a prompt are not supported"),
        ({"prompt_token_ids": [1], "token_type_ids": np.array([1])}, "token_type_ids of a prompt are not supported"),
        ({"prompt_embeds": [[0.5]]}, r"prompt_embeds must be a tensor \[tokens, hidden\], got list"),
    ],
    ids=str,
)
def test_an_invalid_prompt_is_refused_with_vllms_message(prompts: Any, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        parse_prompts(prompts)


def test_a_text_or_token_ids_may_have_one_or_several_images() -> None:
    single, multiple, without = parse_prompts(
        [
            {"prompt": "a", "multi_modal_data": {"image": "cat.png"}, "mm_processor_kwargs": {"max_pixels": 1}},
            {
                "prompt_token_ids": [1, 2],
                "multi_modal_data": {"image": [b"x", "y"]},
                "multi_modal_uuids": {"image": "z"},
            },
            {"prompt": "c", "multi_modal_data": {"image": []}, "cache_salt": "salt"},
        ]
    )

    assert isinstance(single, MultimodalPrompt) and isinstance(multiple, MultimodalPrompt)
    assert (single.prompt, single.mm_processor_kwargs, without) == ("a", {"max_pixels": 1}, "c")
    assert [(image.source, image.param_path) for image in single.images] == [("cat.png", "multi_modal_data.image")]
    assert multiple.prompt == [1, 2]
    assert [image.source for image in multiple.images] == [b"x", "y"]
    assert [image.param_path for image in multiple.images] == ["multi_modal_data.image[0]", "multi_modal_data.image[1]"]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({"prompt": "a", "multi_modal_data": {"audio": b"x"}}, "got 'audio'"),
        ({"prompt": "a", "multi_modal_data": "cat.png"}, "got str"),
        ({"prompt": "a", "multi_modal_data": {"image": b"x"}, "mm_processor_kwargs": [1]}, "a dictionary, got list"),
        ({"multi_modal_data": {"image": b"x"}}, "must contain text, tokens, or embeddings"),
        ({"prompt_embeds": torch.zeros(2, 4), "multi_modal_data": {"image": b"x"}}, "cannot be combined"),
    ],
)  # fmt: skip
def test_invalid_images_are_refused_with_the_reason(prompt: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        parse_prompts(prompt)


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        (None, TokenizationParams()),
        ({}, TokenizationParams()),
        ({"truncate_prompt_tokens": 7}, TokenizationParams(truncate_prompt_tokens=7)),
        ({"truncate_prompt_tokens": -1}, TokenizationParams(truncate_prompt_tokens=-1)),
        ({"truncate_prompt_tokens": None}, TokenizationParams()),
        ({"truncation": True, "max_length": 7}, TokenizationParams(truncate_prompt_tokens=7)),
        ({"truncation": "longest_first", "max_length": 7}, TokenizationParams(truncate_prompt_tokens=7)),
        ({"truncation": True}, TokenizationParams(truncate_prompt_tokens=-1)),
        (
            {"truncation": True, "max_length": 7, "truncate_prompt_tokens": 5},
            TokenizationParams(truncate_prompt_tokens=5),
        ),
        ({"truncation": False, "max_length": 7}, TokenizationParams()),
        ({"truncation": "do_not_truncate", "max_length": 7}, TokenizationParams()),
        ({"max_length": 7}, TokenizationParams()),
        ({"padding": "max_length", "max_length": 7}, TokenizationParams(pad_prompt_tokens=7)),
        ({"padding": "max_length"}, TokenizationParams(pad_prompt_tokens=-1)),
        ({"pad_prompt_tokens": 7}, TokenizationParams(pad_prompt_tokens=7)),
        ({"pad_prompt_tokens": -1}, TokenizationParams(pad_prompt_tokens=-1)),
        ({"padding": False, "max_length": 7}, TokenizationParams(pad_prompt_tokens=0)),
        ({"padding": "do_not_pad", "max_length": 7}, TokenizationParams(pad_prompt_tokens=0)),
        (
            {"truncation_side": "left", "add_special_tokens": False, "do_lower_case": True},
            TokenizationParams(truncation_side="left", add_special_tokens=False, do_lower_case=True),
        ),
    ],
    ids=str,
)
def test_tokenization_kwargs_are_parsed(kwargs: dict[str, Any] | None, expected: TokenizationParams) -> None:
    assert parse_tokenization_kwargs(kwargs) == expected


def test_unknown_tokenization_keywords_are_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "cenote"):
        assert parse_tokenization_kwargs({"return_tensors": "pt", "verbose": True}) == TokenizationParams()

    assert "return_tensors, verbose" in caplog.text
