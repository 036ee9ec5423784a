"""Parsers of command-line values and flags."""

from __future__ import annotations

import argparse

import pytest

from cenote.utils.arguments import (
    mask_secrets,
    normalize_flag,
    parse_json_object,
    parse_non_negative_int,
    parse_positive_int,
)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", ""])
def test_a_positive_int_is_at_least_1(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a whole number of at least 1"):
        parse_positive_int(text)
    assert parse_positive_int("12") == 12
    assert parse_non_negative_int("0") == 0


@pytest.mark.parametrize("text", ["[1]", "3", "{", '"a"'])
def test_a_json_object_flag_takes_only_an_object(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not (a )?JSON"):
        parse_json_object(text)
    assert parse_json_object('{"a": 1}') == {"a": 1}


@pytest.mark.parametrize(
    ("word", "normalized"),
    [("--max_model_len", "--max-model-len"), ("--a_b=c_d", "--a-b=c_d"), ("a_b", "a_b"), ("-a_b", "-a_b")],
)
def test_underscores_become_hyphens_in_the_name_of_a_flag_only(word: str, normalized: str) -> None:
    assert normalize_flag(word) == normalized


def test_only_the_values_of_secret_flags_are_masked() -> None:
    argv = ["embed", "--hf-token", "abc", "--hf_token=abc", "--model", "abc_def"]

    assert mask_secrets(argv, ["--hf-token"]) == ["embed", "--hf-token", "...", "--hf-token=...", "--model", "abc_def"]
