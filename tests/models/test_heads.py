"""Classification heads of every family equal Transformers: logits, probabilities and token outputs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from cenote import PoolerConfig
from tests.models.parity import RAW, assert_same, classified, encoded, opened
from tests.tiny import (
    SEQUENCES,
    compute_hidden_states,
    compute_logits,
    save_tiny,
    tiny_bert_classifier,
    tiny_bert_token_classifier,
    tiny_modernbert_classifier,
)

# what Transformers compiles its DeBERTa with
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")

FAMILIES = ("Bert", "Roberta", "XLMRoberta", "ModernBert", "Qwen2", "Qwen3")
ENCODERS = ("Camembert", "DistilBert", "MPNet", "Albert", "Electra", "Deberta", "DebertaV2")
DECODERS = ("Llama", "Mistral", "Ministral", "Phi3", "Glm", "GPT2", "Gemma", "Gemma2")
EXPERTS = ("Qwen2Moe", "Qwen3Moe", "Mixtral", "DeepseekV3")
OWN_SIZES: dict[str, dict[str, Any]] = {"Ministral": {"head_dim": 8}, "Mistral": {"sliding_window": 4}}


@pytest.mark.parametrize(
    ("family", "num_labels"),
    [
        *product(FAMILIES, (1, 2, 3)),
        *product((*ENCODERS, *DECODERS, "Gemma3Text", "Olmo", "Olmo2", "Olmo3", *EXPERTS), (3,)),
    ],
)
def test_a_sequence_classifier_matches_transformers(family: str, num_labels: int, tmp_path: Path) -> None:
    sizes = OWN_SIZES.get(family, {})
    reference = save_tiny(tmp_path, f"{family}ForSequenceClassification", num_labels=num_labels, **sizes)
    expected = compute_logits(reference)

    with opened(tmp_path) as llm:
        raw, probabilities = classified(llm, RAW), classified(llm)

    # use_activation=False disables only the activation of the logits, not that of the dense layer
    assert_same(raw, expected)
    assert_same(probabilities, [row.sigmoid() if num_labels == 1 else row.softmax(-1) for row in expected])


@pytest.mark.parametrize("family", [*FAMILIES, *ENCODERS, "T5", *DECODERS, *EXPERTS, "OpenAIPrivacyFilter"])
def test_a_token_classifier_matches_transformers(family: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, f"{family}ForTokenClassification", num_labels=5, **OWN_SIZES.get(family, {}))
    expected = compute_logits(reference)

    with opened(tmp_path) as llm:
        assert llm.supported_tasks == ("token_classify",)
        raw, probabilities = encoded(llm, "token_classify", RAW), encoded(llm, "token_classify")

    assert [len(rows) for rows in raw] == [len(ids) for ids in SEQUENCES]
    assert_same(raw, expected)
    assert_same(probabilities, [rows.softmax(-1) for rows in expected])


@pytest.mark.parametrize(
    ("problem", "activation"),
    [
        ("regression", lambda x: x),
        ("single_label_classification", lambda x: x.softmax(-1)),
        ("multi_label_classification", torch.sigmoid),
    ],
)
def test_the_problem_type_decides_the_activation(
    problem: str, activation: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    reference = tiny_bert_classifier(tmp_path, problem_type=problem)

    with opened(tmp_path) as llm:
        assert_same(classified(llm), [activation(row) for row in compute_logits(reference)])
        assert_same(classified(llm, RAW), compute_logits(reference))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_modernbert_pools_as_its_config_says(pooling: str, tmp_path: Path) -> None:
    reference = tiny_modernbert_classifier(tmp_path, classifier_pooling=pooling, classifier_bias=True, norm_bias=True)

    with opened(tmp_path) as llm:
        assert_same(classified(llm, RAW), compute_logits(reference))


@pytest.mark.parametrize(("config_pooling", "pooling"), [("cls", "MEAN"), ("mean", "CLS")])
def test_modernbert_pools_by_the_pooler_config(config_pooling: str, pooling: str, tmp_path: Path) -> None:
    reference = tiny_modernbert_classifier(tmp_path, classifier_pooling=config_pooling)
    reference.config.classifier_pooling = pooling.lower()

    with opened(tmp_path, pooler_config=PoolerConfig(pooling_type=pooling)) as llm:
        assert_same(classified(llm, RAW), compute_logits(reference))


def test_modernbert_uses_the_activation_of_its_config(tmp_path: Path) -> None:
    reference = tiny_modernbert_classifier(tmp_path, classifier_activation="relu")

    with opened(tmp_path) as llm:
        assert_same(classified(llm, RAW), compute_logits(reference))


def last_layer(reference: PreTrainedModel) -> torch.nn.Module:
    module: torch.nn.Module = getattr(reference, "classifier", None) or reference.score
    return module


@pytest.mark.parametrize("family", ["Bert", "ModernBert", "Qwen2", "Qwen3", "DistilBert", "Albert", "DebertaV2"])
def test_a_token_of_a_sequence_classifier_gets_the_last_layer_only(family: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, f"{family}ForSequenceClassification", num_labels=3)

    with opened(tmp_path) as llm, torch.inference_mode():
        assert_same(
            encoded(llm, "token_classify", RAW),
            [last_layer(reference)(rows) for rows in compute_hidden_states(reference)],
        )


@pytest.mark.parametrize("family", ["Roberta", "XLMRoberta", "MPNet", "Electra"])
def test_a_token_gets_the_full_head_if_the_classifier_is_one_module(family: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, f"{family}ForSequenceClassification", num_labels=3)

    with opened(tmp_path) as llm, torch.inference_mode():
        # the Transformers head uses the first token of a sequence: pass each token as a sequence
        assert_same(
            encoded(llm, "token_classify", RAW),
            [reference.classifier(rows[:, None]) for rows in compute_hidden_states(reference)],
        )


def test_a_classifier_can_be_calibrated(tmp_path: Path) -> None:
    reference = tiny_bert_classifier(tmp_path, num_labels=1)
    expected = [(row - 0.5) / 2.0 for row in compute_logits(reference)]

    with opened(tmp_path, pooler_config=PoolerConfig(logit_mean=0.5, logit_sigma=2.0)) as llm:
        assert_same(classified(llm, RAW), expected)
        assert_same(classified(llm), [row.sigmoid() for row in expected])


def test_the_older_name_of_the_mean_means_the_same(tmp_path: Path) -> None:
    reference = tiny_bert_classifier(tmp_path, num_labels=1)

    with opened(tmp_path, pooler_config={"logit_bias": 0.5}) as llm:
        assert_same(classified(llm, RAW), [row - 0.5 for row in compute_logits(reference)])


def test_reward_gives_a_row_for_every_token(tmp_path: Path) -> None:
    reference = tiny_bert_token_classifier(tmp_path, num_labels=2)

    with opened(tmp_path) as llm:
        rows = [output.outputs.data for output in llm.reward(SEQUENCES, use_tqdm=False)]

    assert_same(rows, [row.softmax(-1) for row in compute_logits(reference)])
