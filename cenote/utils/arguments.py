"""Parsers of command-line values and flags, shared by `cenote` and `cenote bench`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Sequence
from typing import Any


def parse_positive_int(text: str) -> int:
    """Parse an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def parse_non_negative_int(text: str) -> int:
    """Parse an integer of at least 0."""
    return 0 if text == "0" else parse_positive_int(text)


def parse_json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object like " + '{"name": "value"}')
    return value


def normalize_flag(word: str) -> str:
    """Return `--max_model_len=1` as `--max-model-len=1`, and a word that is not a long flag unchanged."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else word


def mask_secrets(argv: Sequence[str], secret_flags: Collection[str]) -> list[str]:
    """Return a command line with `...` for the values of `secret_flags`."""
    words: list[str] = []
    is_secret_value = False
    for word in argv:
        name, equals, _ = normalize_flag(word).partition("=")
        is_secret = name in secret_flags
        words.append("..." if is_secret_value else f"{name}=..." if is_secret and equals else word)
        is_secret_value = is_secret and not equals
    return words
