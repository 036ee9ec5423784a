"""Sentence Transformers files are read in their old and new layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

from cenote.config.options import Sourced
from cenote.layers.torch_dtypes import to_tensor
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.module_list import locate_encoder
from cenote.loading.module_weights import load_dense
from cenote.loading.sentence_transformers import (
    DenseModule,
    read_sentence_transformers_files,
)

OLD = "sentence_transformers.models"
NEW = "sentence_transformers.base.modules"


def written(folder: Path, modules: list[tuple[str, str]], **configs: dict[str, Any]) -> Checkpoint:
    """Write modules.json and the config.json of modules."""
    lines = [{"idx": row, "name": str(row), "path": path, "type": kind} for row, (kind, path) in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(lines))
    for name, config in configs.items():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(config))
    return Checkpoint("test", folder)


def pooled(folder: Path, config: dict[str, Any]) -> Checkpoint:
    return written(folder, [(f"{OLD}.Transformer", ""), (f"{OLD}.Pooling", "pool")], pool=config)


def with_dense(folder: Path, config: dict[str, Any], kind: str = f"{OLD}.Dense") -> Checkpoint:
    modules = [(f"{OLD}.Transformer", ""), (f"{OLD}.Pooling", "pool"), (kind, "dense")]
    return written(folder, modules, pool={"pooling_mode": "mean"}, dense=config)


def test_a_folder_without_sentence_transformers_files_gives_none(tmp_path: Path) -> None:
    assert read_sentence_transformers_files(Checkpoint("test", tmp_path)) is None


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["cls_token"], ("CLS",)),
        (["max_tokens"], ("MAX",)),
        (["mean_tokens"], ("MEAN",)),
        (["mean_sqrt_len_tokens"], ("MEAN_SQRT_LEN",)),
        (["weightedmean_tokens"], ("WEIGHTEDMEAN",)),
        (["lasttoken"], ("LAST",)),
        (["lasttoken", "mean_tokens", "cls_token"], ("CLS", "MEAN", "LAST")),
        ([], ("MEAN",)),
    ],
)
def test_flags_name_the_pooling_in_a_fixed_order(tmp_path: Path, flags: list[str], expected: tuple[str, ...]) -> None:
    config = {"word_embedding_dimension": 4, "pooling_mode_max_tokens": False}
    config |= {f"pooling_mode_{flag}": True for flag in flags}

    files = read_sentence_transformers_files(pooled(tmp_path, config))

    assert files is not None
    assert files.pooling == Sourced(expected, "pool/config.json")


@pytest.mark.parametrize("config", [{"pooling_mode": "median"}, {"pooling_mode": []}, {"pooling_mode_median": True}])
def test_an_unknown_pooling_is_refused(tmp_path: Path, config: dict[str, Any], refused: Any) -> None:
    with refused("pool/config.json", "expected one of:"):
        read_sentence_transformers_files(pooled(tmp_path, config))


@pytest.mark.parametrize(
    "kind",
    [
        f"{OLD}.Normalize",
        f"{NEW}.normalize.Normalize",
        "sentence_transformers.sentence_transformer.modules.normalize.Normalize",
    ],
)
def test_a_normalize_module_of_any_layout_means_to_normalise(tmp_path: Path, kind: str) -> None:
    modules = [(f"{OLD}.Transformer", ""), (f"{OLD}.Pooling", "pool"), (kind, "2_Normalize")]

    files = read_sentence_transformers_files(written(tmp_path, modules, pool={"pooling_mode": "cls"}))

    assert files is not None
    assert files.normalize == Sourced(True, "modules.json")


def test_a_transformer_alone_leaves_pooling_and_normalisation_open(tmp_path: Path) -> None:
    files = read_sentence_transformers_files(written(tmp_path, [(f"{NEW}.transformer.Transformer", "")]))

    assert files is not None
    assert files.pooling is None
    assert files.normalize is None


@pytest.mark.parametrize(
    "kind",
    [
        "custom_st.Transformer",
        "os.system",
        "Pooling",
        "sentence_transformers.models.WeightedLayerPooling",
        "sentence_transformers.models.BoW",
    ],
)
def test_a_module_that_cannot_be_run_is_named_and_never_imported(tmp_path: Path, kind: str, refused: Any) -> None:
    with refused("modules.json", repr(kind), "expected one of: Transformer, "):
        read_sentence_transformers_files(written(tmp_path, [(kind, "")]))


@pytest.mark.parametrize(
    "kinds",
    [
        ("Transformer", "Normalize", "Dense"),
        ("Transformer", "Dense", "Pooling"),
        ("Pooling", "Transformer"),
        ("Transformer", "Pooling", "Pooling"),
    ],
)
def test_an_order_that_would_compute_something_else_is_refused(
    tmp_path: Path, kinds: tuple[str, ...], refused: Any
) -> None:
    with refused("modules.json", "the supported order"):
        read_sentence_transformers_files(written(tmp_path, [(f"{OLD}.{kind}", "") for kind in kinds]))


@pytest.mark.parametrize("content", ["{}", "[1]", '[{"path": ""}]'])
def test_a_modules_file_of_another_shape_is_refused(tmp_path: Path, content: str, refused: Any) -> None:
    (tmp_path / "modules.json").write_text(content)

    with refused("modules.json"):
        read_sentence_transformers_files(Checkpoint("test", tmp_path))


def test_the_files_of_a_transformer_in_a_subfolder_take_precedence(tmp_path: Path) -> None:
    root = written(tmp_path, [(f"{OLD}.Transformer", "0_Transformer")])
    (tmp_path / "0_Transformer").mkdir()
    (tmp_path / "0_Transformer" / "config.json").write_text("{}")
    (tmp_path / "config.json").write_text("{}")

    checkpoint = locate_encoder(root)

    assert checkpoint.find_file("config.json") == tmp_path / "0_Transformer" / "config.json"
    assert checkpoint.find_file("modules.json") == tmp_path / "modules.json"


def test_a_missing_pooling_config_is_named(tmp_path: Path, refused: Any) -> None:
    with refused("1_Pooling/config.json is missing"):
        read_sentence_transformers_files(
            written(tmp_path, [(f"{OLD}.Transformer", ""), (f"{OLD}.Pooling", "1_Pooling")])
        )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("torch.nn.modules.linear.Identity", "identity"),
        ("torch.nn.modules.activation.Tanh", "tanh"),
        ("torch.nn.GELU", "gelu"),
        ("ReLU", "relu"),
        ("silu", "silu"),
        ("torch.nn.modules.activation.Sigmoid", "sigmoid"),
    ],
)
def test_a_dense_module_is_read_as_data(tmp_path: Path, given: str, expected: str) -> None:
    files = read_sentence_transformers_files(
        with_dense(tmp_path, {"in_features": 4, "out_features": 2, "bias": False, "activation_function": given})
    )

    assert files is not None
    assert files.projector == (DenseModule(4, 2, False, expected, "dense"),)


@pytest.mark.parametrize(("kind", "expected"), [(f"{OLD}.Dense", "tanh"), ("pylate.models.Dense.Dense", "identity")])
def test_an_activation_left_out_is_the_one_of_the_package(tmp_path: Path, kind: str, expected: str) -> None:
    files = read_sentence_transformers_files(with_dense(tmp_path, {"in_features": 4, "out_features": 2}, kind))

    assert files is not None
    assert files.projector == (DenseModule(4, 2, True, expected, "dense"),)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"in_features": 4}, "out_features is None"),
        (
            {"in_features": 4, "out_features": 2, "activation_function": "os.system"},
            "unknown activation_function 'os.system'",
        ),
        (
            {"in_features": 4, "out_features": 2, "activation_function": "evil.Tanh"},
            "unknown activation_function 'evil.Tanh'",
        ),
    ],
)
def test_a_dense_module_that_cannot_be_run_is_refused(
    tmp_path: Path, config: dict[str, Any], words: str, refused: Any
) -> None:
    with refused("dense/config.json", words):
        read_sentence_transformers_files(with_dense(tmp_path, config))


@pytest.mark.parametrize("prefix", ["", "linear.", "dense."])
@pytest.mark.parametrize("pickled", [False, True])
def test_the_tensors_of_a_dense_module_are_read(tmp_path: Path, prefix: str, pickled: bool) -> None:
    state = {f"{prefix}weight": torch.randn(2, 4), f"{prefix}bias": torch.randn(2)}
    (tmp_path / "dense").mkdir()
    if pickled:
        torch.save(state, tmp_path / "dense" / "pytorch_model.bin")
    else:
        save_file(state, tmp_path / "dense" / "model.safetensors")

    weight, bias = load_dense(Checkpoint("test", tmp_path), DenseModule(4, 2, True, "tanh", "dense"))

    assert bias is not None
    assert_close((to_tensor(weight), to_tensor(bias)), tuple(state.values()))


@pytest.mark.parametrize(
    ("state", "dense", "words"),
    [
        ({"weight": torch.zeros(2, 4)}, DenseModule(4, 3, False, "tanh", "dense"), ["[2, 4]", "[3, 4]"]),
        ({"weight": torch.zeros(2, 4)}, DenseModule(4, 2, True, "tanh", "dense"), ["no bias, linear.bias"]),
        (
            {"kernel": torch.zeros(2, 4)},
            DenseModule(4, 2, False, "tanh", "dense"),
            ["no weight, linear.weight", "kernel"],
        ),
        ({"weight": torch.zeros(2, 4), "bias": torch.zeros(2)}, DenseModule(4, 2, False, "tanh", "dense"), ["a bias"]),
    ],
)
def test_a_dense_module_that_differs_from_its_config_is_refused(
    tmp_path: Path, state: dict[str, torch.Tensor], dense: DenseModule, words: list[str], refused: Any
) -> None:
    (tmp_path / "dense").mkdir()
    save_file(state, tmp_path / "dense" / "model.safetensors")

    with refused("dense/model.safetensors", *words):
        load_dense(Checkpoint("test", tmp_path), dense)


def test_a_dense_module_without_weights_is_refused(tmp_path: Path, refused: Any) -> None:
    with refused("dense has no weights"):
        load_dense(Checkpoint("test", tmp_path), DenseModule(4, 2, True, "tanh", "dense"))


@pytest.mark.parametrize("file", ["sentence_bert_config.json", "sentence_xlm-roberta_config.json"])
def test_the_encoder_file_gives_length_and_case_with_or_without_modules(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text('{"max_seq_length": 128, "do_lower_case": true}')

    files = read_sentence_transformers_files(Checkpoint("test", tmp_path))

    assert files is not None
    assert files.max_length == Sourced(128, file)
    assert files.do_lower_case is True


@pytest.mark.parametrize(
    ("values", "length"), [({"max_seq_length": 77}, 77), ({"max_seq_length": None}, None), ({}, None)]
)
def test_newer_encoder_files_may_say_less(tmp_path: Path, values: dict[str, Any], length: int | None) -> None:
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(values))

    files = read_sentence_transformers_files(Checkpoint("test", tmp_path))

    assert files is not None
    assert (files.max_length.value if files.max_length else None) == length
    assert files.do_lower_case is False


def test_an_invalid_length_is_refused(tmp_path: Path, refused: Any) -> None:
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": "long"}')

    with refused("sentence_bert_config.json", "'long'"):
        read_sentence_transformers_files(Checkpoint("test", tmp_path))


def test_prompts_and_the_rest_are_read(tmp_path: Path, refused: Any) -> None:
    settings = {"prompts": {"query": "q: "}, "default_prompt_name": "query", "similarity_fn_name": "dot"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))

    files = read_sentence_transformers_files(Checkpoint("test", tmp_path))

    assert files is not None
    assert (files.prompts, files.default_prompt_name, files.similarity_fn_name) == ({"query": "q: "}, "query", "dot")
    (tmp_path / "config_sentence_transformers.json").write_text('{"prompts": {"query": 1}}')
    with refused("config_sentence_transformers.json", "prompts"):
        read_sentence_transformers_files(Checkpoint("test", tmp_path))
