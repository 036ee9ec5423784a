"""Loading with each file of a model folder deleted, emptied or truncated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from cenote.loading.checkpoint import find_checkpoint
from cenote.loading.hf_config import read_config
from cenote.loading.module_weights import load_dense
from cenote.loading.sentence_transformers import DenseModule, read_sentence_transformers_files
from cenote.loading.tokenizer_files import load_tokenizer_files
from cenote.loading.weights import open_weights

JSON_FILES: dict[str, Any] = {
    "config.json": {"architectures": ["BertModel"], "hidden_size": 4},
    "tokenizer_config.json": {"model_max_length": 16},
    "special_tokens_map.json": {"pad_token": "[PAD]"},
    "sentence_bert_config.json": {"max_seq_length": 16, "do_lower_case": False},
    "config_sentence_transformers.json": {"prompts": {"query": "q: "}},
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
    ],
    "1_Pooling/config.json": {"word_embedding_dimension": 4, "pooling_mode_cls_token": True},
    "2_Dense/config.json": {"in_features": 4, "out_features": 2},
    "model.safetensors.index.json": {
        "weight_map": {"a.weight": "model-00001-of-00002.safetensors", "b.weight": "model-00002-of-00002.safetensors"}
    },
}
WEIGHTS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "2_Dense/model.safetensors"]
FILES = [*JSON_FILES, *WEIGHTS, "tokenizer.json"]
# optional files
OPTIONAL = [
    "tokenizer_config.json",
    "special_tokens_map.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "modules.json",
]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for folder in ("1_Pooling", "2_Dense"):
        (tmp_path / folder).mkdir()
    for file, values in JSON_FILES.items():
        (tmp_path / file).write_text(json.dumps(values))
    save_file({"a.weight": torch.randn(4, 4)}, tmp_path / WEIGHTS[0])
    save_file({"b.weight": torch.randn(4, 4)}, tmp_path / WEIGHTS[1])
    save_file({"linear.weight": torch.randn(2, 4), "linear.bias": torch.randn(2)}, tmp_path / WEIGHTS[2])
    Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1}, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def read_all(folder: Path) -> None:
    checkpoint = find_checkpoint(str(folder))
    read_config(checkpoint)
    files = read_sentence_transformers_files(checkpoint)
    for step in files.projector if files is not None else ():
        assert isinstance(step, DenseModule)
        load_dense(checkpoint, step)
    load_tokenizer_files(checkpoint)
    weights = open_weights(checkpoint)
    for name in weights.names():
        weights.get(name)


def test_all_files_of_the_folder_are_hashed(model: Path) -> None:
    read_all(model)


@pytest.mark.parametrize("file", FILES)
def test_an_empty_file_is_named(model: Path, file: str, refused: Any) -> None:
    (model / file).write_bytes(b"")

    with refused(str(model / file), "0 bytes"):
        read_all(model)


@pytest.mark.parametrize("file", FILES)
def test_half_a_file_is_named(model: Path, file: str, refused: Any) -> None:
    whole = (model / file).read_bytes()
    (model / file).write_bytes(whole[: len(whole) // 2])

    with refused(str(model / file)):
        read_all(model)


@pytest.mark.parametrize("file", [file for file in FILES if file.endswith(".json")])
def test_a_file_that_is_nested_too_deep_is_named(model: Path, file: str, refused: Any) -> None:
    (model / file).write_text('{"a":' * 100_000 + "1" + "}" * 100_000)

    with refused(str(model / file)):
        read_all(model)


@pytest.mark.parametrize("file", [file for file in FILES if file not in OPTIONAL])
def test_a_deleted_file_is_named(model: Path, file: str, refused: Any) -> None:
    (model / file).unlink()

    with refused(Path(file).name):
        read_all(model)


@pytest.mark.parametrize("file", OPTIONAL)
def test_a_file_that_may_be_missing_is_not_missed(model: Path, file: str) -> None:
    (model / file).unlink()

    read_all(model)
