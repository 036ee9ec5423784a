"""The fingerprint of a model changes with everything that changes its results, and with nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cenote import LLM
from cenote.config.engine import EngineConfig
from cenote.config.pooler import PoolerConfig
from cenote.errors import BadRequest, LoadError
from cenote.kernels.cpu_features import CPUFeatures
from cenote.loading import model_files, number_formats
from cenote.loading.describe import describe_model
from cenote.loading.fingerprint import Fingerprint, compute_fingerprint, list_differing_parts
from cenote.loading.model_files import digest_file, list_missing_files, list_weight_files
from tests.tiny import change_config, tiny_bert


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_bert(tmp_path / "model")
    return tmp_path / "model"


def fingerprint_of(folder: Path, **options: Any) -> Fingerprint:
    config = EngineConfig(model=str(folder), device="cpu", **{"dtype": "float32", **options})
    fingerprint = compute_fingerprint(describe_model(config), config)
    assert fingerprint is not None
    return fingerprint


def changed_parts(before: Fingerprint, after: Fingerprint) -> list[str]:
    return list_differing_parts(str(before), str(after))


def change_weights(folder: Path) -> None:
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)


def change_vocabulary(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"berlin"', '"bonn"'))


def add_pooling(folder: Path) -> None:
    (folder / "modules.json").write_text(
        json.dumps(
            [
                {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
                {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            ]
        )
    )
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_max_tokens": True}))


def add_prompt(folder: Path) -> None:
    settings = {"prompts": {"query": "query: "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))


FILE_CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "weights": (change_weights, "weights"),
    "config": (lambda folder: change_config(folder, layer_norm_eps=1e-3), "config"),
    "vocabulary": (change_vocabulary, "tokenizer"),
    "pooling": (add_pooling, "pooling"),
    "prompt": (add_prompt, "prompts"),
}


@pytest.mark.parametrize("name", FILE_CHANGES)
def test_a_changed_file_changes_the_part_it_belongs_to(folder: Path, name: str) -> None:
    change, part = FILE_CHANGES[name]
    before = fingerprint_of(folder)

    change(folder)

    assert part in changed_parts(before, fingerprint_of(folder))


OPTION_CHANGES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "dtype": ({"dtype": "bfloat16"}, ["dtype"]),
    "quantization": ({"quantization": "int8"}, ["dtype"]),
    "pooling": ({"pooler_config": PoolerConfig(pooling_type="MEAN")}, ["pooling"]),
    "activation": ({"pooler_config": PoolerConfig(use_activation=False)}, ["pooling"]),
    "overrides": ({"hf_overrides": {"layer_norm_eps": 0.5}}, ["config"]),
    "length": ({"max_model_len": 16}, ["config"]),
    "prompt": ({"default_prompt": "query: "}, ["prompts"]),
    "chat template": ({"chat_template": "{{ messages }}"}, ["prompts"]),
}


@pytest.mark.parametrize("name", OPTION_CHANGES)
def test_an_option_changes_the_part_it_belongs_to(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    every_unit = CPUFeatures("x86", frozenset({"amx_tile", "amx_bf16", "amx_int8"}))
    monkeypatch.setattr(number_formats, "cpu_features", lambda: every_unit)
    options, parts = OPTION_CHANGES[name]

    assert changed_parts(fingerprint_of(folder), fingerprint_of(folder, **options)) == parts


def test_another_tokenizer_changes_its_part(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "other")
    change_vocabulary(tmp_path / "other")

    other = fingerprint_of(folder, tokenizer=str(tmp_path / "other"))

    assert changed_parts(fingerprint_of(folder), other) == ["tokenizer"]


def test_the_default_adapter_counts_and_others_do_not(folder: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text("{}")
        (tmp_path / name / "adapter_model.safetensors").write_text(name)

    def fingerprint_with(path: str, default: str | None) -> str:
        return str(fingerprint_of(folder, lora_modules=(f"mine={tmp_path / path}",), default_adapter=default))

    assert fingerprint_with("first", None) == fingerprint_with("second", None) == str(fingerprint_of(folder))
    assert list_differing_parts(fingerprint_with("first", "mine"), fingerprint_with("second", "mine")) == ["weights"]


def test_it_does_not_depend_on_the_folder_and_on_files_that_are_not_loaded(folder: Path, tmp_path: Path) -> None:
    add_prompt(folder)
    add_pooling(folder)
    copy = tmp_path / "elsewhere" / "under another name"
    shutil.copytree(folder, copy)
    (copy / "README.md").write_text("text")
    (copy / "pytorch_model.bin").write_text("the same weights in another format")
    (copy / "vocab.txt").write_text("of tokenizer.json")
    (copy / "onnx").mkdir()
    (copy / "onnx" / "model.safetensors").write_text("not loaded")
    change_config(copy, transformers_version="9.9.9", _name_or_path="/home/somebody")

    options = {"served_model_name": "mine", "max_num_seqs": 3, "result_cache_bytes": 1024**2}

    assert str(fingerprint_of(folder)) == str(fingerprint_of(copy, **options))


def test_the_default_model_keeps_its_fingerprint(default_folder: Path) -> None:
    """Users compare it across versions: a change needs an entry in the changelog."""
    assert str(fingerprint_of(default_folder)) == "3ffd84b9ef895bbbca701d8600f300676935b39a"


def test_a_file_of_the_hub_cache_is_not_read(tmp_path: Path) -> None:
    blob, weights = tmp_path / ("ab" * 32), tmp_path / "model.safetensors"
    blob.write_text("weights")
    weights.symlink_to(blob.name)

    assert digest_file(weights) == "ab" * 32


def test_of_a_large_file_size_header_and_samples_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "MAX_FULL_BYTES", 1000)
    monkeypatch.setattr(model_files, "NUM_SAMPLES", 4)
    monkeypatch.setattr(model_files, "SAMPLE_BYTES", 10)
    path = tmp_path / "model.safetensors"
    content = (200).to_bytes(8, "little") + bytes(2000)
    path.write_bytes(content)
    before = digest_file(path)

    def digest_with(index: int) -> str:
        changed = bytearray(content)
        changed[index] ^= 1
        path.write_bytes(changed)
        return digest_file(path)

    assert digest_with(150) != before  # in the header
    assert digest_with(len(content) - 1) != before  # in the last sample
    assert digest_with(400) == before  # between the samples
    assert digest_file(path, is_full=True) != before
    path.write_bytes(content + b"\0")
    assert digest_file(path) != before


def test_a_missing_shard_leaves_the_fingerprint_unknown(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    config = EngineConfig(model=str(folder), device="cpu")

    description = describe_model(config, needs_weights=False)

    assert compute_fingerprint(description, config) is None
    assert list_missing_files(description.checkpoint, description.checkpoint) == [shards["b"]]

    (folder / "model-00002-of-00002.safetensors").write_text("x")
    assert len(list_weight_files(description.checkpoint)) == 2


def test_a_model_with_the_expected_fingerprint_loads(folder: Path) -> None:
    fingerprint = str(fingerprint_of(folder))
    for expected in (fingerprint, fingerprint[:12], fingerprint[:12].upper()):
        with LLM(str(folder), dtype="float32", device="cpu", expect_fingerprint=expected) as llm:
            assert llm.engine.model_info.fingerprint == fingerprint


def test_another_fingerprint_is_refused_with_both_and_the_parts(folder: Path) -> None:
    before = str(fingerprint_of(folder))
    add_prompt(folder)
    after = str(fingerprint_of(folder))

    with pytest.raises(LoadError, match=f"is {after}, expected {before}; different: prompts;"):
        LLM(str(folder), dtype="float32", device="cpu", expect_fingerprint=before)
    with pytest.raises(LoadError, match=f"is {after}, expected {before[:12]}; load"):
        LLM(str(folder), dtype="float32", device="cpu", expect_fingerprint=before[:12])


@pytest.mark.parametrize("text", ["", "abc", "0123456789ag", "0" * 41])
def test_an_invalid_expectation_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="expected 12 to 40 hex digits"):
        EngineConfig(expect_fingerprint=text)
