"""Maximum length and dtypes are derived from config.json."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from cenote.config.options import Sourced
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.hf_config import read_architectures, read_config
from cenote.loading.lengths import resolve_max_length
from cenote.loading.number_formats import resolve_dtype, resolve_head_dtype
from cenote.models.architecture import HFConfig
from cenote.models.registry import NO_FLOAT16
from cenote.utils.dtypes import Dtype

ORIGINAL = {"original_max_position_embeddings": "many"}


def checkpoint_with(folder: Path, **files: Any) -> Checkpoint:
    for name, values in files.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    return Checkpoint("test", folder)


def length(
    folder: Path,
    config: dict[str, Any],
    *,
    tokenizer: int | float | None = None,
    encoder: int | None = None,
    user: int | None = None,
    offset: int = 0,
    rows: int = 0,
    stretched: bool = False,
) -> Sourced[int]:
    files = {} if tokenizer is None else {"tokenizer_config": {"model_max_length": tokenizer}}
    return resolve_max_length(
        HFConfig(config),
        checkpoint_with(folder, **files),
        encoder_max_length=None if encoder is None else Sourced(encoder, "sentence_bert_config.json"),
        requested=user,
        position_offset=offset,
        has_prescaled_rope=stretched,
        num_learned_positions=rows,
    )


def test_a_mapping_is_merged_into_the_config_at_every_depth(tmp_path: Path) -> None:
    checkpoint = checkpoint_with(tmp_path, config={"a": 1, "rope": {"type": "yarn", "factor": 2.0}})

    config = read_config(checkpoint, {"a": 2, "rope": {"factor": 4.0}, "new": [1]})

    assert config.values == {"a": 2, "rope": {"type": "yarn", "factor": 4.0}, "new": [1]}


def test_a_function_maps_the_config_to_another_without_spoiling_the_first(tmp_path: Path) -> None:
    checkpoint = checkpoint_with(tmp_path, config={"a": {"b": 1}})

    def change(values: dict[str, Any]) -> dict[str, Any]:
        values["a"]["b"] = 2
        return values

    assert read_config(checkpoint, change).a == {"b": 2}
    assert read_config(checkpoint, None).a == {"b": 1}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (lambda values: None, "returned NoneType"),
        (lambda values: values["missing"], "KeyError"),
        ("text", "got str"),
    ],
)
def test_overrides_that_give_no_config_are_refused(tmp_path: Path, overrides: Any, words: str, refused: Any) -> None:
    checkpoint = checkpoint_with(tmp_path, config={})

    with refused("hf_overrides", words):
        read_config(checkpoint, overrides)


def test_a_missing_key_names_the_file(tmp_path: Path, refused: Any) -> None:
    with refused("config.json has no 'hidden_size'"):
        _ = read_config(checkpoint_with(tmp_path, config={})).hidden_size


def test_a_missing_config_is_named(tmp_path: Path, refused: Any) -> None:
    with refused("config.json is missing"):
        read_config(Checkpoint("x", tmp_path))


def test_architecture_names_are_a_list_of_texts(refused: Any) -> None:
    assert read_architectures(HFConfig({"architectures": ["BertModel"]})) == ["BertModel"]
    assert read_architectures(HFConfig({})) == []
    with refused("architectures is 'BertModel'"):
        read_architectures(HFConfig({"architectures": "BertModel"}))


@pytest.mark.parametrize(
    ("config", "expected", "source"),
    [
        ({"max_position_embeddings": 512}, 512, "config.json max_position_embeddings"),
        ({"n_positions": 1024}, 1024, "config.json n_positions"),
        ({"max_seq_len": 300, "seq_length": 200}, 200, "config.json seq_length"),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, 131072, "config.json model_max_length"),
        ({"max_sequence_length": 77}, 77, "config.json max_sequence_length"),
    ],
)
def test_any_of_the_usual_keys_gives_the_length(
    tmp_path: Path, config: dict[str, Any], expected: int, source: str
) -> None:
    assert length(tmp_path, config) == Sourced(expected, source)


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("type_key", ["rope_type", "type"])
def test_yarn_multiplies_the_original_length(tmp_path: Path, key: str, type_key: str) -> None:
    scaling = {type_key: "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}

    assert length(tmp_path, {"max_position_embeddings": 8000, key: scaling}).value == 8192


def test_longrope_starts_from_the_original_length(tmp_path: Path) -> None:
    scaling = {"rope_type": "longrope", "short_factor": [1.0]}
    config = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "rope_scaling": scaling}

    assert length(tmp_path, config) == Sourced(4096, "config.json original_max_position_embeddings")


def test_dynamic_scaling_multiplies_and_llama3_does_not(tmp_path: Path) -> None:
    base = {"max_position_embeddings": 2048}

    assert length(tmp_path, {**base, "rope_scaling": {"type": "dynamic", "factor": 2.0}}).value == 4096
    assert length(tmp_path, {**base, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}).value == 2048
    linear = {"rope_type": "linear", "factor": 8.0}
    assert length(tmp_path, {**base, "rope_scaling": linear}).value == 8 * 2048
    assert length(tmp_path, {**base, "rope_scaling": linear}, stretched=True).value == 2048


def test_where_gte_scales_its_rotary_positions_the_length_is_the_one_reached(tmp_path: Path) -> None:
    ntk = {"type": "ntk", "factor": 8.0}  # as in gte-multilingual-reranker-base

    assert length(tmp_path, {"max_position_embeddings": 8192, "rope_scaling": ntk}).value == 8192


def test_sentence_transformers_replace_the_length_both_ways(tmp_path: Path) -> None:
    config = {"max_position_embeddings": 512}

    assert length(tmp_path, config, encoder=256) == Sourced(256, "sentence_bert_config.json")
    assert length(tmp_path, config, encoder=1024).value == 1024


def test_the_tokenizer_lowers_the_length_of_models_with_a_position_table(tmp_path: Path) -> None:
    config = {"max_position_embeddings": 512}

    lowered = length(tmp_path, config, tokenizer=128, rows=512)
    assert lowered == Sourced(128, "config.json max_position_embeddings, lowered by tokenizer_config.json")
    assert length(tmp_path, config, tokenizer=128).value == 512  # rotary positions
    assert length(tmp_path, config, tokenizer=1e30, rows=512).value == 512


def test_no_file_can_lead_past_the_rows_of_the_position_table(tmp_path: Path) -> None:
    config = {"max_position_embeddings": 514}

    assert length(tmp_path, config, rows=514, offset=2).value == 512
    assert length(tmp_path, config, encoder=514, tokenizer=514, rows=514, offset=2).value == 512
    assert length(tmp_path, {}, rows=514, offset=2) == Sourced(512, "the number of learned positions")


def test_without_any_length_2048_is_used_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "cenote"):
        assert length(tmp_path, {}).value == 2048
    assert "has no maximum length" in caplog.text


def test_a_smaller_max_model_len_is_used_and_minus_one_means_unset(tmp_path: Path) -> None:
    config = {"max_position_embeddings": 512}

    granted = length(tmp_path, config, user=100)
    assert granted == Sourced(100, "config.json max_position_embeddings, lowered by max_model_len")
    assert length(tmp_path, config, user=-1).value == 512
    assert length(tmp_path, {}, user=9000) == Sourced(9000, "max_model_len")


@pytest.mark.parametrize("user", [0, -2])
def test_an_invalid_length_is_refused(tmp_path: Path, user: int, refused: Any) -> None:
    with refused(f"max_model_len={user}"):
        length(tmp_path, {"max_position_embeddings": 512}, user=user)


def test_a_larger_max_model_len_is_refused_with_the_message_of_vllm(tmp_path: Path, refused: Any) -> None:
    with refused(
        "User-specified max_model_len (600) is greater than the derived max_model_len (max_position_embeddings=512 "
        "or model_max_length=None in model's config.json).",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1",
    ):
        length(tmp_path, {"max_position_embeddings": 512}, user=600)


@pytest.mark.parametrize("name", ["VLLM_ALLOW_LONG_MAX_MODEL_LEN", "CENOTE_ALLOW_LONG_MAX_MODEL_LEN"])
def test_the_environment_allows_more_but_never_more_than_the_table_has(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, refused: Any
) -> None:
    monkeypatch.setenv(name, "1")
    config = {"max_position_embeddings": 512}

    assert length(tmp_path, config, user=600) == Sourced(600, "max_model_len")
    assert length(tmp_path, config, encoder=128, rows=512, user=300).value == 300
    with refused("no setting allows more than 512"):
        length(tmp_path, config, rows=512, user=600)


def test_rope_parameters_per_layer_type_do_not_change_the_length(tmp_path: Path) -> None:
    layers = {"full_attention": {"rope_type": "default", "rope_theta": 1.0}, "sliding_attention": None}

    assert length(tmp_path, {"max_position_embeddings": 8192, "rope_parameters": layers}).value == 8192


@pytest.mark.parametrize("scaling", ["yarn", {"type": "yarn", "factor": None}, {"type": "longrope"} | ORIGINAL])
def test_an_invalid_rope_scaling_is_named(tmp_path: Path, scaling: Any, refused: Any) -> None:
    with refused("config.json", "rope scaling"):
        length(tmp_path, {"max_position_embeddings": 512, "rope_scaling": scaling})


def test_an_invalid_length_in_the_config_is_named(tmp_path: Path, refused: Any) -> None:
    with refused("max_position_embeddings is 'many'"):
        length(tmp_path, {"max_position_embeddings": "many"})


@pytest.mark.parametrize(
    ("config", "device", "native", "expected"),
    [
        ({"torch_dtype": "float32"}, "cuda", False, "float16"),
        ({}, "cuda", False, "float16"),
        ({"dtype": "bfloat16"}, "cuda", False, "bfloat16"),
        ({"torch_dtype": "torch.float16"}, "cuda", False, "float16"),
        ({"dtype": "float32", "model_type": "gemma3_text"}, "cuda", False, "bfloat16"),
        ({"dtype": "float16", "model_type": "gemma2"}, "cuda", False, "bfloat16"),
        ({"dtype": "float16"}, "cpu", False, "float32"),
        ({"dtype": "float16"}, "cpu", True, "bfloat16"),
        ({"dtype": "float32"}, "cpu", True, "bfloat16"),
    ],
)
def test_automatic_dtype_follows_the_checkpoint_and_the_device(
    config: dict[str, Any], device: str, native: bool, expected: Dtype
) -> None:
    float16 = config.get("model_type") not in NO_FLOAT16
    assert (
        resolve_dtype(HFConfig(config), "auto", device, native_bf16=native, supports_float16=float16).value == expected
    )


def test_an_explicit_dtype_is_taken(refused: Any) -> None:
    config = HFConfig({"dtype": "float32", "model_type": "gemma2"})

    assert resolve_dtype(config, "float", "cuda", native_bf16=False) == Sourced("float32", "dtype")
    assert resolve_dtype(HFConfig({}), "half", "cuda", native_bf16=False).value == "float16"
    with refused("'half'", "gemma2", "bfloat16 or float32"):
        resolve_dtype(config, "half", "cuda", native_bf16=False, supports_float16=False)
    with refused("dtype='int8'; expected one of: auto, float32"):
        resolve_dtype(config, "int8", "cpu", native_bf16=False)


def test_a_checkpoint_in_an_unknown_type_asks_for_an_explicit_one(refused: Any) -> None:
    with refused("config.json", "'float8_e4m3fn'", "set dtype"):
        resolve_dtype(HFConfig({"dtype": "float8_e4m3fn"}), "auto", "cuda", native_bf16=False)


def test_heads_run_in_float32_unless_the_config_says_otherwise(refused: Any) -> None:
    def resolved(asked: str, device: str = "cuda", *, native_bf16: bool = False) -> Dtype:
        config = HFConfig({"head_dtype": asked} if asked else {})
        return resolve_head_dtype(config, "float16", device, native_bf16=native_bf16).value

    assert resolved("") == "float32"
    assert resolved("model") == "float16"
    assert resolved("bfloat16") == "bfloat16"
    assert resolved("bfloat16", "cpu", native_bf16=True) == "bfloat16"
    assert resolved("bfloat16", "cpu") == "float32"
    with refused("head_dtype='tiny'; expected one of: model"):
        resolved("tiny")


@pytest.mark.parametrize(
    ("asked", "native", "expected"),
    [
        ("bfloat16", True, "bfloat16"),
        ("bfloat16", False, "float32"),
        ("float16", True, "float32"),
        ("half", False, "float32"),
        ("float32", False, "float32"),
    ],
)
def test_a_cpu_without_units_for_a_dtype_uses_float32_with_one_warning(
    asked: str, native: bool, expected: Dtype, caplog: pytest.LogCaptureFixture
) -> None:
    config = HFConfig({"model_type": "gemma2"})
    with caplog.at_level(logging.WARNING, "cenote"):
        dtype = resolve_dtype(config, asked, "cpu", native_bf16=native, supports_float16=False)

    assert dtype.value == expected
    lines = [record.getMessage() for record in caplog.records]
    name = {"half": "float16"}.get(asked, asked)
    if name == expected:
        assert lines == [] and dtype.source == "dtype"
        return
    assert dtype.source == f"dtype={name}, run in float32 on this CPU"
    assert len(lines) == 1
    assert lines[0].startswith(f"dtype={name}: this CPU has no fast {name} arithmetic; using float32")
    assert ("bfloat16 is faster" in lines[0]) is native
