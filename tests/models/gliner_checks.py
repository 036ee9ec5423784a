"""Texts, labels and comparisons for the tests of GLiNER models."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken
from torch import Tensor
from transformers import AutoTokenizer

from cenote import LLM
from cenote.protocol.results import Entity
from tests.engine.tasks.sentences import SENTENCES
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


def assert_entities_equal(
    llm: LLM, find: Callable[[str, float], Found], texts: Sequence[str], thresholds: Sequence[float]
) -> None:
    """Assert that a model finds what a plain implementation finds: entities of several labels and several words."""
    found: list[Entity] = []
    for threshold in thresholds:
        outputs = llm.entities(texts, labels=LABELS, threshold=threshold, use_tqdm=False)
        for text, output in zip(texts, outputs, strict=True):
            assert_found(output.outputs.entities, find(text, threshold), text)
            found += output.outputs.entities
    assert len({entity.label for entity in found}) > 1
    assert any(" " in entity.text for entity in found)


def choose_apart(
    candidates: Sequence[tuple[float, int, int, int]], words: Sequence[tuple[int, int]], labels: Sequence[str]
) -> Found:
    """Return the best of the candidates (score, first word, last word, label) that share no word, in order."""
    chosen: list[tuple[float, int, int, int]] = []
    for candidate in sorted(candidates, key=lambda item: -item[0]):
        if all(candidate[1] > last or candidate[2] < first for _, first, last, _ in chosen):
            chosen.append(candidate)
    return [
        (words[first][0], words[last][1], labels[label], score)
        for score, first, last, label in sorted(chosen, key=lambda item: item[1])
    ]


TAGGED = "Mail a.b@city.org or @Who, see https://what.is/deep?a=1 now!"

LETTER = r"[\w\u0300-\u036f]"  # with accents that are characters of their own


def split(text: str) -> list[tuple[int, int]]:
    """Return the words of these texts: URLs, addresses, mentions, words with hyphens, single characters."""
    pattern = rf"https?://\S+|[\w.]+@[\w.]+\.[a-z]+|@\w+|{LETTER}+(?:[-_]{LETTER}+)*|\S"
    return [match.span() for match in re.finditer(pattern, text)]


def encode_prompt(
    tokenizer: Any, encoder: Any, text: str, labels: Sequence[str]
) -> tuple[list[tuple[int, int]], Tensor, Tensor, Tensor]:
    """Return the words of a text and the states of the prompt's task, of its labels and of the words."""
    words = split(text if text.endswith((".", "!", "?")) else f"{text}.")
    prompt = ["(", "[P]", "entities", "(", *(part for label in labels for part in ("[E]", label)), ")", ")"]
    prompt.append("[SEP_TEXT]")
    full = f"{text}."
    pieces = [tokenizer.tokenize(word) for word in [*prompt, *(full[slice(*word)].lower() for word in words)]]
    rows = [sum(map(len, pieces[:row])) for row in range(len(pieces))]
    ids = tokenizer.convert_tokens_to_ids([token for piece in pieces for token in piece])
    states = encoder(torch.tensor([ids])).last_hidden_state[0]
    label_states = states[[rows[4 + 2 * label] for label in range(len(labels))]]
    return words, states[rows[1]], label_states, states[rows[len(prompt) :]]
