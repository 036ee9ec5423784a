"""GLiNER with span mode token_level against a plain implementation: words that start, end and continue an entity."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from cenote import LLM
from tests.factories import LLMFactory
from tests.layouts.builders.gliner import save_gliner
from tests.models.gliner_checks import LABELS, TEXTS, Found, assert_entities_equal, choose_apart, load_tokenizer


@torch.no_grad()
def compute_probs(encoder: Any, head: Any, tokenizer: Any, words: Sequence[str], labels: Sequence[str]) -> Any:
    """Return the probabilities [words][labels][start, end, inside], one pair of word and label after the other."""
    prompt = [part for label in labels for part in ("<<ENT>>", label)] + ["<<SEP>>"]
    encoding = tokenizer([*prompt, *words], is_split_into_words=True)
    rows = [encoding.word_ids().index(row) for row in range(len(prompt) + len(words))]
    states = head["token_rep_layer"]["projection"](encoder(torch.tensor([encoding["input_ids"]])).last_hidden_state)[0]
    contexts = head["rnn"]["lstm"](states[rows[len(prompt) :]][None])[0][0]
    scorer = head["scorer"]
    probs = []
    for context in contexts:
        probs.append([])
        for row in rows[: len(prompt) - 1 : 2]:
            word, word_factor = scorer["proj_token"](context).chunk(2)
            label, label_factor = scorer["proj_label"](states[row]).chunk(2)
            logits = scorer["out_mlp"](torch.cat((word, label, word_factor * label_factor)))
            probs[-1].append(logits.sigmoid().tolist())
    return probs


def find_entities(model: Any, text: str, labels: Sequence[str], threshold: float) -> Found:
    words = [match.span() for match in re.finditer(r"\w+(?:[-_]\w+)*|\S", text)]
    if not words:
        return []
    probs = compute_probs(*model, [text[slice(*word)] for word in words], labels)
    candidates = []
    for first in range(len(words)):
        for label in range(len(labels)):
            for last in range(first, len(words)):
                inside = [probs[word][label][2] for word in range(first, last + 1)]
                ends = probs[first][label][0], probs[last][label][1]
                if min(ends) > threshold and min(inside) >= threshold:
                    candidates.append((min(*inside, *ends), first, last, label))
    return choose_apart(candidates, words, labels)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gliner") / "gliner-multitask-large-v0.5"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> tuple[Any, Any, Any]:
    encoder, head = save_gliner(folder, span_mode="token_level")
    return encoder, head, load_tokenizer(folder.parent / "deberta-v3-base")


@pytest.fixture(scope="module")
def llm(folder: Path, model: Any, open_llm: LLMFactory) -> LLM:
    return open_llm(folder)


@pytest.mark.parametrize("threshold", [0.5, 0.3, 0.1])
def test_entities_equal_those_of_a_plain_implementation(model: Any, llm: LLM, threshold: float) -> None:
    assert_entities_equal(llm, lambda text, least: find_entities(model, text, LABELS, least), TEXTS, [threshold])
