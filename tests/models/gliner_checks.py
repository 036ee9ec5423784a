"""Texts, labels and comparisons for the tests of GLiNER models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer

from cenote.protocol.results import Entity
from tests.engine.tasks.test_entities import SENTENCES
from tests.layouts.builders.gliner import PROMPT_TOKENS

LABELS = ["city", "what is deep", "person"]

TEXTS = [*SENTENCES, "the cat-sat on_the mat, what is the query about?", "", "deep water " * 4]

Found = list[tuple[int, int, str, float]]


def load_tokenizer(folder: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([AddedToken(token, special=True) for token in PROMPT_TOKENS], special_tokens=True)
    return tokenizer


def assert_found(entities: Sequence[Entity], expected: Found, text: str) -> None:
    assert [(entity.start, entity.end, entity.label) for entity in entities] == [item[:3] for item in expected]
    assert [entity.score for entity in entities] == pytest.approx([item[3] for item in expected], abs=1e-4)
    assert all(entity.text == entity.word == text[entity.start : entity.end] for entity in entities)


TAGGED = "Mail a.b@city.org or @Who, see https://what.is/deep?a=1 now!"

LETTER = r"[\w\u0300-\u036f]"  # with accents that are characters of their own


def split(text: str) -> list[tuple[int, int]]:
    """Return the words of these texts: URLs, addresses, mentions, words with hyphens, single characters."""
    pattern = rf"https?://\S+|[\w.]+@[\w.]+\.[a-z]+|@\w+|{LETTER}+(?:[-_]{LETTER}+)*|\S"
    return [match.span() for match in re.finditer(pattern, text)]
