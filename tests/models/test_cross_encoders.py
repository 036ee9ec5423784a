"""Cross-encoders as Sentence Transformers saves them, tiny and random: pairs, token types, activations."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from sentence_transformers import CrossEncoder
from torch import nn

from cenote import LLM
from tests.models.parity import opened
from tests.tiny import TEXTS, change_config, save_tiny

# what Transformers compiles its DeBERTa with
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")

QUERIES = ["how big is the city?", "a", "who live in berlin, and where?", "the red bird"] * 2
PAIRS = list(zip(QUERIES, TEXTS, strict=False))


def score(llm: LLM) -> list[float]:
    outputs = llm.score(*map(list, zip(*PAIRS, strict=True)), use_tqdm=False)
    return [output.outputs.score for output in outputs]


@pytest.mark.parametrize(
    ("family", "activation"),
    [
        *product(("Bert", "Roberta", "ModernBert"), (nn.Sigmoid(), nn.Identity(), nn.Tanh())),
        *product(("Camembert", "DistilBert", "MPNet", "Albert", "Electra", "Deberta", "DebertaV2"), (nn.Sigmoid(),)),
    ],
)
def test_a_pair_scores_as_in_sentence_transformers(family: str, activation: nn.Module, tmp_path: Path) -> None:
    base, whole = tmp_path / "base", tmp_path / "whole"
    base.mkdir()
    save_tiny(base, f"{family}ForSequenceClassification", num_labels=1)
    reference = CrossEncoder(str(base), device="cpu", activation_fn=activation)
    reference.save(str(whole), create_model_card=False)

    with opened(whole) as llm:
        actual = score(llm)

    expected = reference.predict(PAIRS, show_progress_bar=False).tolist()
    assert actual == pytest.approx(expected, abs=1e-4)


def test_a_tokenizer_that_names_no_token_types_gives_none(tmp_path: Path) -> None:
    save_tiny(tmp_path, "BertForSequenceClassification", num_labels=1)
    settings = tmp_path / "tokenizer_config.json"
    values = json.loads(settings.read_text()) if settings.exists() else {}
    settings.write_text(json.dumps({**values, "model_input_names": ["input_ids", "attention_mask"]}))
    reference = CrossEncoder(str(tmp_path), device="cpu")
    pair = (TEXTS[0], TEXTS[1])

    with opened(tmp_path) as llm:
        (actual,) = llm.score(*pair, use_tqdm=False)

    assert actual.outputs.score == pytest.approx(float(reference.predict([pair])[0]), abs=1e-5)


@pytest.mark.parametrize("name", [None, "BertTokenizer", "PreTrainedTokenizerFast", "DistilBertTokenizer"])
def test_token_types_are_those_of_the_tokenizer_class(
    name: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_tiny(tmp_path, "BertForSequenceClassification", num_labels=1)
    change_config(tmp_path, file="tokenizer_config.json", drop=("tokenizer_class", "model_input_names"))
    if name is not None:
        change_config(tmp_path, file="tokenizer_config.json", tokenizer_class=name)
    expected = CrossEncoder(str(tmp_path), device="cpu").predict(PAIRS, show_progress_bar=False).tolist()

    with opened(tmp_path) as llm:
        actual = score(llm)

    assert actual == pytest.approx(expected, abs=1e-5)
    warnings = [record.getMessage() for record in caplog.records if "token types of pairs are 0" in record.message]
    assert len(warnings) == (name in ("PreTrainedTokenizerFast", "DistilBertTokenizer"))
    assert all("add token_type_ids to model_input_names" in message for message in warnings)


@pytest.mark.parametrize("has_modules", [True, False])
def test_settings_need_modules_json(has_modules: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    base, whole = tmp_path / "base", tmp_path / "whole"
    base.mkdir()
    save_tiny(base, "BertForSequenceClassification", num_labels=1)
    model = CrossEncoder(
        str(base),
        device="cpu",
        activation_fn=nn.Identity(),
        prompts={"web": "who live in berlin: "},
        default_prompt_name="web",
    )
    model.save_pretrained(str(whole), create_model_card=False)
    if not has_modules:
        (whole / "modules.json").unlink()
    expected = CrossEncoder(str(whole), device="cpu").predict(PAIRS, show_progress_bar=False).tolist()

    with opened(whole) as llm:
        actual = score(llm)

    assert actual == pytest.approx(expected, abs=1e-4)
    assert all(0 < score < 1 for score in expected) is not has_modules  # the sigmoid is the default without the file
    messages = [record.getMessage() for record in caplog.records if "modules.json, which is missing" in record.message]
    assert len(messages) == (not has_modules)
    assert all("prompts, default_prompt_name, activation_fn are not applied" in message for message in messages)
