"""Language models as embedders, classifiers and rerankers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from cenote.errors import LoadError
from tests.models.parity import RAW, assert_same, classified, embedded, opened
from tests.tiny import compute_hidden_states, save_tiny, tiny_bert, tiny_qwen3_causal

RERANKER = {
    "architectures": ["Qwen3ForSequenceClassification"],
    "classifier_from_token": ["no", "yes"],
    "is_original_qwen3_reranker": True,
}
QUERY = "how big is berlin?"
DOCUMENTS = ["the city of berlin is big", "a red fish", "no", "people live in the old city, and in the new one"]


def answer_logits(reference: PreTrainedModel, folder: Path, text: str, words: list[str]) -> Tensor:
    """Return the logits of some words after a text."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    with torch.inference_mode():
        after = reference(**tokenizer(text, return_tensors="pt", return_token_type_ids=False)).logits[0, -1]
    return after[tokenizer.convert_tokens_to_ids(words)]


@pytest.mark.parametrize("tied", [False, True])
def test_a_reranker_scores_by_its_yes_against_its_no(tied: bool, tmp_path: Path) -> None:
    reference = tiny_qwen3_causal(tmp_path, tie_word_embeddings=tied)
    expected = [answer_logits(reference, tmp_path, QUERY + text, ["no", "yes"]) for text in DOCUMENTS]

    with opened(tmp_path, hf_overrides=RERANKER, score_template="none") as llm:
        scores = [item.outputs.score for item in llm.score(QUERY, DOCUMENTS, use_tqdm=False)]
        raw = llm.score(QUERY, DOCUMENTS, pooling_params=RAW, use_tqdm=False)

    assert scores == pytest.approx([pair.softmax(-1)[1].item() for pair in expected], abs=1e-4)
    assert [item.outputs.score for item in raw] == pytest.approx([(yes - no).item() for no, yes in expected], abs=1e-4)


def test_a_template_joins_query_and_document(tmp_path: Path) -> None:
    reference = tiny_qwen3_causal(tmp_path)
    template = "query: {{ messages[0]['content'] }} passage: {{ messages[1]['content'] }}!"
    expected = [
        answer_logits(reference, tmp_path, f"query: {QUERY} passage: {text}!", ["no", "yes"]) for text in DOCUMENTS
    ]

    with opened(tmp_path, hf_overrides=RERANKER) as llm:
        scores = llm.score(QUERY, DOCUMENTS, chat_template=template, use_tqdm=False)

    assert [item.outputs.score for item in scores] == pytest.approx(
        [pair.softmax(-1)[1].item() for pair in expected], abs=1e-4
    )


def test_tokens_of_the_vocabulary_may_be_the_labels(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "Qwen2ForCausalLM")
    words = ["good", "bad", "old"]
    overrides = {"classifier_from_token": words, "method": "no_post_processing"}

    with opened(tmp_path, hf_overrides=overrides) as llm:
        actual = llm.classify(DOCUMENTS, use_tqdm=False)

    for mine, text in zip(actual, DOCUMENTS, strict=True):
        assert_close(mine.outputs.data, answer_logits(reference, tmp_path, text, words).softmax(-1), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ({"classifier_from_token": ["no", "maybe"], "method": "from_2_way_softmax"}, "'maybe'.* vocabulary"),
        ({"classifier_from_token": ["no"], "method": "from_2_way_softmax"}, "two tokens"),
        ({"classifier_from_token": ["no", "yes"]}, "requires method"),
        ({"classifier_from_token": ["no", "yes"], "method": "guess"}, "'guess'"),
        ({"method": "no_post_processing"}, "requires classifier_from_token"),
    ],
)
def test_token_labels_that_cannot_be_used_are_refused(
    overrides: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    tiny_qwen3_causal(tmp_path)

    with pytest.raises(LoadError, match=complaint):
        opened(tmp_path, hf_overrides=overrides)


@pytest.mark.parametrize("convert", ["auto", "embed"])
@pytest.mark.parametrize(
    "name",
    [f"{family}ForCausalLM" for family in ("Qwen2", "Qwen3", "Llama", "Granite", "Gemma3")] + ["GPT2LMHeadModel"],
)
def test_a_language_model_embeds_by_its_last_token(name: str, convert: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, name)

    with opened(tmp_path, convert=convert) as llm:
        assert llm.supported_tasks == ("embed", "token_embed")
        assert_same(embedded(llm), [F.normalize(rows[-1], dim=-1) for rows in compute_hidden_states(reference)])


def test_the_error_for_a_language_model_without_classifier_names_the_options(tmp_path: Path) -> None:
    tiny_qwen3_causal(tmp_path)

    with pytest.raises(LoadError, match=r"no score\.weight in the checkpoint.*convert='embed'.*classifier_from_token"):
        opened(tmp_path, convert="classify")


def test_the_error_for_an_encoder_without_classifier_names_the_options(tmp_path: Path) -> None:
    tiny_bert(tmp_path)

    with pytest.raises(LoadError, match=r"no classifier\.weight in the checkpoint"):
        opened(tmp_path, convert="classify")


@pytest.mark.parametrize("with_bias", [False, True])
def test_a_language_model_with_a_score_layer_classifies(with_bias: bool, tmp_path: Path) -> None:
    reference = tiny_qwen3_causal(tmp_path)
    weight, bias = torch.randn(3, 32), torch.randn(3)
    file = tmp_path / "model.safetensors"
    extra = {"score.weight": weight} | ({"score.bias": bias} if with_bias else {})
    save_file(load_file(file) | extra, file, metadata={"format": "pt"})

    with opened(tmp_path, convert="classify", hf_overrides={"num_labels": 3}) as llm:
        actual = classified(llm)

    logits = [F.linear(rows[-1], weight, bias if with_bias else None) for rows in compute_hidden_states(reference)]
    assert_same(actual, [row.softmax(-1) for row in logits])


def test_a_language_model_must_be_converted(tmp_path: Path) -> None:
    tiny_qwen3_causal(tmp_path)

    with pytest.raises(LoadError, match="--convert <embed|classify>"):
        opened(tmp_path, convert="none")


def test_generation_is_not_offered(tmp_path: Path) -> None:
    tiny_qwen3_causal(tmp_path)

    with pytest.raises(LoadError, match="runner='generate'"):
        opened(tmp_path, runner="generate")
