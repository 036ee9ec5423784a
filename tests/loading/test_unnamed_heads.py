"""Heads that config.json does not announce are used if certain, warned about otherwise, or the model is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from torch.testing import assert_close

from cenote import LLM, LoadError
from cenote.config.engine import EngineConfig
from cenote.loading.describe import describe_model
from cenote.loading.model_description import ModelDescription
from tests.layouts.builders import text_families
from tests.models.jina_bert import plain_jina
from tests.tiny import (
    SEQUENCES,
    change_config,
    save_tiny,
    tiny_bert,
    tiny_bert_classifier,
    tiny_qwen3_classifier,
    tiny_roberta_classifier,
)


def described(folder: Path, **options: Any) -> ModelDescription:
    return describe_model(EngineConfig.from_kwargs(str(folder), dtype="float32", device="cpu", **options))


def test_jina_reranker_v1_scores_with_the_head_that_its_architecture_name_hides(tmp_path: Path) -> None:
    text_families.jina_reranker_v1(tmp_path)
    config, tensors = json.loads((tmp_path / "config.json").read_text()), load_file(tmp_path / "model.safetensors")
    config = {key: value for key, value in config.items() if key != "auto_map"}

    def score(ids: list[int]) -> torch.Tensor:
        first = plain_jina(config, tensors, ids)[0]
        dense = F.linear(first, tensors["pooler.dense.weight"], tensors["pooler.dense.bias"]).tanh()
        return F.linear(dense, tensors["classifier.weight"], tensors["classifier.bias"]).sigmoid()

    with LLM(str(tmp_path), dtype="float32") as llm:
        assert llm.supported_tasks == ("classify", "token_classify", "score")
        outputs = llm.classify(SEQUENCES, use_tqdm=False)

    for ids, output in zip(SEQUENCES, outputs, strict=True):
        assert_close(output.outputs.data, score(ids), atol=1e-4, rtol=0)


def test_it_is_known_by_its_name_if_the_weights_are_not_there(tmp_path: Path) -> None:
    text_families.jina_reranker_v1(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert described(tmp_path).kind.value == "embed"

    change_config(tmp_path, _name_or_path="jinaai/jina-reranker-v1-tiny-en")

    assert (described(tmp_path).kind.value, described(tmp_path).num_labels) == ("sequence", 1)


def test_it_embeds_if_that_is_wanted(tmp_path: Path) -> None:
    text_families.jina_reranker_v1(tmp_path)

    assert described(tmp_path, convert="embed").kind.value == "embed"
    assert described(tmp_path, convert="embed").doubts == ()


@pytest.mark.parametrize(
    ("tiny", "architecture", "head"),
    [
        (tiny_bert_classifier, "BertModel", "classifier.weight [3, 32]"),
        (tiny_roberta_classifier, "RobertaModel", "classifier.dense.weight [32, 32]"),
        (tiny_qwen3_classifier, "Qwen3ForCausalLM", "score.weight [3, 32]"),
    ],
)
def test_a_head_that_the_architecture_name_hides_is_a_doubt(
    tiny: Any, architecture: str, head: str, tmp_path: Path
) -> None:
    tiny(tmp_path)
    change_config(tmp_path, architectures=[architecture])

    (doubt,) = described(tmp_path, pooler_config={"pooling_type": "MEAN"}).doubts

    assert doubt.startswith(f"{tmp_path / 'model.safetensors'}: the head {head} is not used by {architecture}")
    assert "hf_overrides=" in doubt and "convert='embed'" in doubt and "\n" not in doubt
    assert described(tmp_path, convert="embed").doubts == ()


@pytest.mark.parametrize(
    "name", ["BertForMaskedLM", "BertForPreTraining", "RobertaForMaskedLM", "Qwen3ForCausalLM", "ElectraForPreTraining"]
)
def test_heads_of_pretraining_are_no_doubt(name: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, name)

    assert described(tmp_path).doubts == ()


def test_poolers_and_classifiers_that_are_read_are_no_doubt(tmp_path: Path) -> None:
    for name, tiny in (("encoder", tiny_bert), ("classifier", tiny_bert_classifier)):
        (tmp_path / name).mkdir()
        tiny(tmp_path / name)

        assert described(tmp_path / name, pooler_config={"pooling_type": "MEAN"}).doubts == ()


def test_an_embedder_by_its_sentence_transformers_files_may_have_a_head(tmp_path: Path) -> None:
    tiny_bert_classifier(tmp_path)
    change_config(tmp_path, architectures=["BertModel"])
    text_families.write_modules(tmp_path)

    assert described(tmp_path).doubts == ()


@pytest.mark.parametrize(
    ("names", "model_type", "reason"),
    [
        (["BertForQuestionAnswering"], "bert", "its head marks the span of an answer; use convert='embed'"),
        (["RobertaForMultipleChoice"], "roberta", "its head compares the choices of one question"),
        (["FunnelBaseModel"], "funnel", "it returns fewer hidden states than tokens; use the model without -base"),
        (["DPRReader"], "dpr", "use the context and question encoders"),
        (["ContextualDocumentEmbeddingTransformer"], "cde", "its second stage reads embeddings of a corpus"),
    ],
)
def test_a_model_without_a_pooling_task_is_refused_with_the_reason(
    names: list[str], model_type: str, reason: str, tmp_path: Path
) -> None:
    tiny_bert(tmp_path)
    change_config(tmp_path, architectures=names, model_type=model_type)

    with pytest.raises(LoadError) as caught:
        described(tmp_path)

    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: {names[0]} is not supported")
    assert reason in str(caught.value) and "\n" not in str(caught.value)


def test_a_question_answering_model_embeds_if_that_is_wanted(tmp_path: Path) -> None:
    save_tiny(tmp_path, "BertForQuestionAnswering")

    assert described(tmp_path, convert="embed").kind.value == "embed"
    text_families.write_modules(tmp_path)
    assert described(tmp_path).kind.value == "embed"


def test_a_classifier_of_several_rows_in_an_unnamed_reranker_is_a_doubt(tmp_path: Path) -> None:
    text_families.jina_reranker_v1(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors |= {"classifier.weight": torch.zeros(4, 36), "classifier.bias": torch.zeros(4)}
    save_file(tensors, tmp_path / "model.safetensors")

    (doubt,) = described(tmp_path).doubts

    assert 'hf_overrides={"architectures": ["JinaBertForSequenceClassification"], "num_labels": 4}' in doubt
