"""Cross-encoders as Sentence Transformers saves them, tiny and random: pairs, token types, activations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sentence_transformers import CrossEncoder
from torch import nn

from cenote import LLM
from tests.tiny import TEXTS, save_tiny

QUERIES = ["how big is the city?", "a", "who live in berlin, and where?", "the red bird"] * 2
PAIRS = list(zip(QUERIES, TEXTS, strict=False))


@pytest.mark.parametrize("activation", [nn.Sigmoid(), nn.Identity(), nn.Tanh()])
@pytest.mark.parametrize("family", ["Bert", "Roberta", "ModernBert"])
def test_a_pair_scores_as_in_sentence_transformers(family: str, activation: nn.Module, tmp_path: Path) -> None:
    base, whole = tmp_path / "base", tmp_path / "whole"
    base.mkdir()
    save_tiny(base, f"{family}ForSequenceClassification", num_labels=1)
    reference = CrossEncoder(str(base), device="cpu", activation_fn=activation)
    reference.save(str(whole), create_model_card=False)

    with LLM(str(whole), dtype="float32", device="cpu") as llm:
        actual = llm.score(*map(list, zip(*PAIRS, strict=True)), use_tqdm=False)

    expected = reference.predict(PAIRS, show_progress_bar=False).tolist()
    assert [item.outputs.score for item in actual] == pytest.approx(expected, abs=1e-4)


def test_a_tokenizer_that_names_no_token_types_gives_none(tmp_path: Path) -> None:
    save_tiny(tmp_path, "BertForSequenceClassification", num_labels=1)
    settings = tmp_path / "tokenizer_config.json"
    values = json.loads(settings.read_text()) if settings.exists() else {}
    settings.write_text(json.dumps({**values, "model_input_names": ["input_ids", "attention_mask"]}))
    reference = CrossEncoder(str(tmp_path), device="cpu")
    pair = (TEXTS[0], TEXTS[1])

    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        (actual,) = llm.score(*pair, use_tqdm=False)

    assert actual.outputs.score == pytest.approx(float(reference.predict([pair])[0]), abs=1e-5)
