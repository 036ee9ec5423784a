"""Settings of published files are applied as the libraries do, or named in a warning with the way out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch.testing import assert_close
from transformers import AutoModel

from cenote import LLM
from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.loading.describe import describe_model
from tests.tiny import TEXTS, change_config, compute_hidden_states, save_tiny, tiny_bert_classifier

ENCODER = "sentence_bert_config.json"


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


def doubts_of(folder: Path, **options: Any) -> tuple[str, ...]:
    return describe_model(EngineConfig.from_kwargs(str(folder), device="cpu", **options)).doubts


def test_usual_files_raise_no_doubt(tmp_path: Path) -> None:
    save_embedder(tmp_path)
    values = {"max_seq_length": 32, "modality_config": {"text": {"method_output_name": "last_hidden_state"}}}
    text = {"padding": True, "truncation": True, "max_length": 20}
    args = {"model_args": {"torch_dtype": "float16"}, "tokenizer_args": {"padding_side": "left"}}
    (tmp_path / ENCODER).write_text(json.dumps({**values, **args, "processing_kwargs": {"text": text}}))

    assert doubts_of(tmp_path) == ()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"modality_config": {"text": {"method_output_name": ["hidden_states", 1]}}}, "method_output_name"),
        ({"processing_kwargs": {"text": {"stride": 2}}}, "processing_kwargs.text stride=2 is not applied"),
        ({"model_args": {"num_hidden_layers": 1}}, "num_hidden_layers of model_args are not applied"),
        ({"tokenizer_args": {"do_lower_case": False}}, "do_lower_case of tokenizer_args are not applied"),
    ],
)
def test_a_setting_that_is_not_applied_is_a_doubt(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_embedder(tmp_path)
    (tmp_path / ENCODER).write_text(json.dumps(values))

    (doubt,) = doubts_of(tmp_path)
    assert str(tmp_path / ENCODER) in doubt and message in doubt


TRUNCATE = {"truncate_prompt_tokens": -1}
LONG_TEXT = "who live in the old city, and how big is the river in berlin? " * 2


@pytest.mark.parametrize(
    "values",
    [
        {"config_args": {"num_hidden_layers": 1}},
        {"config_kwargs": {"num_hidden_layers": 1, "use_cache": False}},
        {"max_seq_length": 20, "tokenizer_args": {"truncation_side": "left"}},
        {"max_seq_length": 20, "tokenizer_args": {"model_max_length": 12}},
        {"max_seq_length": 12, "processor_kwargs": {"model_max_length": 20}},
        {"max_seq_length": 20, "processing_kwargs": {"text": {"max_length": 12}}},
        {"max_seq_length": 20, "processing_kwargs": {"text": {"max_length": 24, "add_special_tokens": False}}},
        {"processing_kwargs": {"text": {"add_special_tokens": False}}},
    ],
)
def test_arguments_in_the_file_of_the_encoder_are_applied(values: dict[str, Any], tmp_path: Path) -> None:
    save_embedder(tmp_path)
    (tmp_path / ENCODER).write_text(json.dumps({"max_seq_length": 32, **values}))
    if "num_hidden_layers" in str(values):
        remove_weights(tmp_path, "layer.1.")
    texts = [*TEXTS, LONG_TEXT]

    with LLM(str(tmp_path), device="cpu", dtype="float32") as llm:
        outputs = llm.embed(texts, tokenization_kwargs=TRUNCATE, use_tqdm=False)

    assert doubts_of(tmp_path) == ()
    expected = SentenceTransformer(str(tmp_path), device="cpu").encode(texts, convert_to_tensor=True)
    assert_close(torch.stack([output.outputs.data for output in outputs]), expected, atol=1e-4, rtol=0)


def remove_weights(folder: Path, part: str) -> None:
    file = folder / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(file).items() if part not in name}
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.mark.parametrize("model", ["BertModel", "RobertaModel", "XLMRobertaModel", "CamembertModel", "ElectraModel"])
def test_an_encoder_with_is_decoder_is_causal(model: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, model)
    change_config(tmp_path, is_decoder=True)
    pooler: Any = {"pooling_type": "MEAN", "use_activation": False}

    with LLM(str(tmp_path), device="cpu", dtype="float32", pooler_config=pooler) as llm:
        outputs = llm.embed(TEXTS, use_tqdm=False)

    reference = AutoModel.from_pretrained(tmp_path).eval()
    states = compute_hidden_states(reference, [output.prompt_token_ids for output in outputs])
    for output, rows in zip(outputs, states, strict=True):
        assert_close(output.outputs.data, rows.mean(0), atol=1e-4, rtol=0)
    assert doubts_of(tmp_path, pooler_config=pooler) == ()


def test_labels_that_do_not_fit_the_classifier_are_numbered(tmp_path: Path) -> None:
    tiny_bert_classifier(tmp_path, num_labels=3)
    change_config(tmp_path, drop=("label2id",), num_labels=3, id2label={"0": "a", "1": "b"})

    with LLM(str(tmp_path), device="cpu", dtype="float32") as llm:
        assert llm.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]


@pytest.mark.parametrize("size", ["8", 0, True, 2.5])
def test_a_truncate_dim_that_is_no_size_is_refused(size: Any, tmp_path: Path) -> None:
    save_embedder(tmp_path)
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"truncate_dim": size}))

    with pytest.raises(LoadError, match=f"config_sentence_transformers.json: truncate_dim is {size!r}; expected"):
        doubts_of(tmp_path)
