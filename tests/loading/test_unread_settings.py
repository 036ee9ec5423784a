"""Settings of published files that are not applied are named in a warning, with the way out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cenote import LLM
from cenote.config.engine import EngineConfig
from cenote.loading.describe import describe_model
from tests.tiny import change_config, save_tiny, tiny_bert_classifier

ENCODER, SETTINGS = "sentence_bert_config.json", "config_sentence_transformers.json"


def save_embedder(folder: Path) -> None:
    save_tiny(folder, "BertModel")
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    (folder / ENCODER).write_text(json.dumps({"max_seq_length": 32, "do_lower_case": False}))


def doubts_of(folder: Path) -> tuple[str, ...]:
    return describe_model(EngineConfig.from_kwargs(str(folder), device="cpu")).doubts


def test_usual_files_raise_no_doubt(tmp_path: Path) -> None:
    save_embedder(tmp_path)
    values = {"max_seq_length": 32, "modality_config": {"text": {"method_output_name": "last_hidden_state"}}}
    (tmp_path / ENCODER).write_text(json.dumps({**values, "model_args": {"torch_dtype": "float16"}}))

    assert doubts_of(tmp_path) == ()


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        (ENCODER, {"modality_config": {"text": {"method_output_name": ["hidden_states", 1]}}}, "method_output_name"),
        (ENCODER, {"processing_kwargs": {"text": {"add_special_tokens": False}}}, "add_special_tokens=False is not"),
        (ENCODER, {"config_args": {"num_hidden_layers": 1}}, "num_hidden_layers of config_args are not applied"),
        (ENCODER, {"tokenizer_args": {"truncation_side": "left"}}, "truncation_side of tokenizer_args"),
    ],
)
def test_a_setting_that_is_not_applied_is_a_doubt(
    file: str, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save_embedder(tmp_path)
    (tmp_path / file).write_text(json.dumps(values))

    (doubt,) = doubts_of(tmp_path)
    assert str(tmp_path / file) in doubt and message in doubt


def test_an_encoder_with_is_decoder_is_a_doubt(tmp_path: Path) -> None:
    save_embedder(tmp_path)
    change_config(tmp_path, is_decoder=True)

    (doubt,) = doubts_of(tmp_path)
    assert "is_decoder is true, but attention is bidirectional here" in doubt


def test_labels_that_do_not_fit_the_classifier_are_numbered(tmp_path: Path) -> None:
    tiny_bert_classifier(tmp_path, num_labels=3)
    change_config(tmp_path, drop=("label2id",), num_labels=3, id2label={"0": "a", "1": "b"})

    with LLM(str(tmp_path), device="cpu", dtype="float32") as llm:
        assert llm.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]
