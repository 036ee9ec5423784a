"""Tensors are read from checkpoint files and loaded into modules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.testing import assert_close

from cenote.layers.torch_dtypes import to_tensor
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.module_loader import load_module
from cenote.loading.weight_loader import StoredParameter, WeightLoader
from cenote.loading.weights import CheckpointWeights, open_weights
from cenote.models.weight_table import WeightTable, transposed_weight
from cenote.utils.install_commands import torch_command

CPU = torch.device("cpu")
TABLE: dict[str, str | list[str]] = {
    "embed": "embeddings.words",
    "layers.*.qkv": [f"encoder.*.{part}" for part in ("query", "key", "value")],
}
# of the parameters of Tiny
SHAPES = {
    "embed.weight": (7, 4),
    **{
        f"layers.{layer}.qkv.{leaf}": shape
        for layer in (0, 1)
        for leaf, shape in (("weight", (12, 4)), ("bias", (12,)))
    },
}


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)


class Tiny(nn.Module):
    """An embedding and two layers with fused QKV matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.layers = nn.ModuleList([Layer(), Layer()])


def tiny_state(prefix: str = "") -> dict[str, Tensor]:
    state = {f"{prefix}embeddings.words.weight": torch.randn(7, 4)}
    for layer in range(2):
        for part in ("query", "key", "value"):
            state[f"{prefix}encoder.{layer}.{part}.weight"] = torch.randn(4, 4)
            state[f"{prefix}encoder.{layer}.{part}.bias"] = torch.randn(4)
    return state


def saved(folder: Path, state: dict[str, Tensor]) -> Checkpoint:
    save_file(state, folder / "model.safetensors")
    return Checkpoint("test", folder)


def make_on_meta(module: type[nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return module()


def load_tiny(
    weights: CheckpointWeights, *, dtype: torch.dtype = torch.float32, prefixes: tuple[str, ...] = ("",)
) -> nn.Module:
    module, loader = make_on_meta(Tiny), WeightLoader(weights, [TABLE], prefixes)
    load_module(loader, module, TABLE, num_layers=2, dtype=dtype, device=CPU)
    loader.check_complete()
    return module


def test_one_file_gives_its_tensors(tmp_path: Path) -> None:
    state = tiny_state()

    weights = open_weights(saved(tmp_path, state))

    assert sorted(weights.names()) == sorted(state)
    assert_close(to_tensor(weights.get("encoder.1.key.bias")), state["encoder.1.key.bias"])


def test_a_tensor_is_mapped_from_its_file_and_not_copied(tmp_path: Path) -> None:
    weights = open_weights(saved(tmp_path, tiny_state()))

    module = load_tiny(weights)

    place = module.get_parameter("embed.weight").data_ptr()
    assert mapped_file(place) == str(tmp_path / "model.safetensors")


def test_the_mapping_of_a_tensor_ends_with_it(tmp_path: Path) -> None:
    tensor = open_weights(saved(tmp_path, tiny_state())).get("embeddings.words.weight")
    place = tensor.ctypes.data
    assert mapped_file(place) == str(tmp_path / "model.safetensors")

    del tensor

    assert mapped_file(place) != str(tmp_path / "model.safetensors")


def mapped_file(address: int) -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, _, end = line.split()[0].partition("-")
        if int(start, 16) <= address < int(end, 16):
            return line.split()[-1]
    return ""


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    state = tiny_state()
    names = sorted(state)
    save_file({name: state[name] for name in names[:5]}, tmp_path / "model-1.safetensors")
    save_file({name: state[name] for name in names[5:]}, tmp_path / "model-2.safetensors")
    places = {name: f"model-{1 if row < 5 else 2}.safetensors" for row, name in enumerate(names)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))

    weights = open_weights(Checkpoint("test", tmp_path))

    assert sorted(weights.names()) == names
    for name in names:
        assert_close(to_tensor(weights.get(name)), state[name])


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ({"a": "model-1.safetensors", "b": "model-9.safetensors"}, ["model-9.safetensors is missing"]),
        ({"a": "model-1.safetensors", "b": "model-1.safetensors"}, ["model-1.safetensors has no b"]),
        ({"a": "../model-1.safetensors"}, ["outside the model folder"]),
        ({}, ["index.json has no weight_map"]),
    ],
)
def test_an_index_that_promises_too_much_is_refused(
    tmp_path: Path, places: dict[str, str], words: list[str], refused: Any
) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "model-1.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))

    with refused(*words):
        open_weights(Checkpoint("test", tmp_path))


def test_every_dtype_of_a_pickle_is_read(tmp_path: Path) -> None:
    stored = {
        kind: torch.tensor([1.5, -2.0], dtype=getattr(torch, kind)) for kind in ("float16", "bfloat16", "float64")
    }
    torch.save(stored, tmp_path / "pytorch_model.bin")

    weights = open_weights(Checkpoint("test", tmp_path))

    assert {kind: str(weights.get(kind).dtype) for kind in stored} == {kind: kind for kind in stored}
    for kind, tensor in stored.items():
        assert_close(to_tensor(weights.get(kind)), tensor)


def test_a_sparse_tensor_is_named(tmp_path: Path, refused: Any) -> None:
    torch.save({"a": torch.eye(3).to_sparse()}, tmp_path / "pytorch_model.bin")
    weights = open_weights(Checkpoint("test", tmp_path))

    with refused("pytorch_model.bin: a cannot be read"):
        weights.get("a")


@pytest.mark.parametrize("new_format", [True, False])
def test_a_pickle_of_tensors_is_read(tmp_path: Path, new_format: bool) -> None:
    state = tiny_state()
    torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=new_format)

    weights = open_weights(Checkpoint("test", tmp_path))

    assert_close(to_tensor(weights.get("embeddings.words.weight")), state["embeddings.words.weight"])
    load_tiny(weights)


def test_sharded_pickles_are_read_as_one(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "one.bin")
    torch.save({"b": torch.zeros(2)}, tmp_path / "two.bin")
    places = {"weight_map": {"a": "one.bin", "b": "two.bin"}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(places))

    assert sorted(open_weights(Checkpoint("test", tmp_path)).names()) == ["a", "b"]


class Evil:
    """Create a file if unpickled without restrictions."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.canary),)


@pytest.mark.parametrize("new_format", [True, False])
def test_a_pickle_that_would_run_code_is_refused_unrun(tmp_path: Path, new_format: bool, refused: Any) -> None:
    canary = tmp_path / "canary"
    state = {"a": torch.ones(2), "b": Evil(canary)}
    torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=new_format)

    with refused("pytorch_model.bin", "could run code", "model.safetensors"):
        open_weights(Checkpoint("test", tmp_path))
    assert not canary.exists()


def test_a_pickle_of_something_else_is_refused(tmp_path: Path, refused: Any) -> None:
    torch.save([torch.ones(2)], tmp_path / "pytorch_model.bin")

    with refused("pytorch_model.bin contains a list"):
        open_weights(Checkpoint("test", tmp_path))


def test_the_error_for_missing_weights_lists_the_expected_files(tmp_path: Path, refused: Any) -> None:
    with refused("expected model.safetensors", "pytorch_model.bin.index.json"):
        open_weights(Checkpoint("test", tmp_path))


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_file_that_was_cut_is_named(tmp_path: Path, file: str, share: float, refused: Any) -> None:
    save_file(tiny_state(), tmp_path / file) if "safe" in file else torch.save(tiny_state(), tmp_path / file)
    whole = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(whole[: int(len(whole) * share)])

    with refused(file):
        open_weights(Checkpoint("test", tmp_path))


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("content", [b"\xff" * 64, b"\x00" * 64, b"{" * 64, (2**40).to_bytes(8, "little") + b"{}"])
def test_an_invalid_weights_file_is_named(tmp_path: Path, file: str, content: bytes, refused: Any) -> None:
    (tmp_path / file).write_bytes(content)

    with refused(file):
        open_weights(Checkpoint("test", tmp_path))


def test_quantised_tensors_are_refused_rather_than_cast(tmp_path: Path, refused: Any) -> None:
    weights = open_weights(saved(tmp_path, {"a": torch.zeros(2, dtype=torch.int8)}))

    with refused("model.safetensors", "a is stored as int8"):
        weights.get("a")


def test_old_names_of_norms_are_read_under_their_new_ones(tmp_path: Path) -> None:
    weights = open_weights(saved(tmp_path, {"x.LayerNorm.gamma": torch.ones(2), "x.LayerNorm.beta": torch.zeros(2)}))

    assert sorted(weights.names()) == ["x.LayerNorm.bias", "x.LayerNorm.weight"]
    assert_close(to_tensor(weights.get("x.LayerNorm.weight")), torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_module_is_filled_and_lists_are_joined_by_rows(tmp_path: Path, dtype: torch.dtype) -> None:
    state = tiny_state()

    module = load_tiny(open_weights(saved(tmp_path, state)), dtype=dtype)

    parts = [state[f"encoder.1.{part}.weight"] for part in ("query", "key", "value")]
    joined = module.get_parameter("layers.1.qkv.weight")
    assert_close(joined, torch.cat(parts).to(dtype))
    assert not joined.requires_grad
    assert all(parameter.device == CPU and parameter.dtype == dtype for parameter in module.parameters())


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_parameters_are_read_without_a_module(tmp_path: Path, dtype: Any) -> None:
    state = tiny_state()
    loader = WeightLoader(open_weights(saved(tmp_path, state)), [TABLE])

    found = {parameter.path: parameter.read(dtype) for parameter in find_tiny(loader)}
    loader.check_complete()

    parts = [state[f"encoder.1.{part}.weight"] for part in ("query", "key", "value")]
    assert_close(to_tensor(found["layers.1.qkv.weight"]).float(), torch.cat(parts), rtol=1e-2, atol=0)
    assert {path: array.shape for path, array in found.items()} == SHAPES
    assert {array.dtype for array in found.values()} == {np.dtype(dtype)}


def test_a_parameter_of_its_stored_dtype_is_the_mapped_file(tmp_path: Path) -> None:
    loader = WeightLoader(open_weights(saved(tmp_path, tiny_state())), [TABLE])

    embed = next(parameter for parameter in find_tiny(loader) if parameter.path == "embed.weight").read(np.float32)

    assert mapped_file(embed.ctypes.data) == str(tmp_path / "model.safetensors")


def test_parameters_of_the_same_tensors_have_the_same_key(tmp_path: Path) -> None:
    shared: WeightTable = {"a": "x", "b": "x", "c": transposed_weight("x"), "d": "y"}
    state = {"x.weight": torch.ones(2, 2), "y.weight": torch.ones(2, 2)}
    loader = WeightLoader(open_weights(saved(tmp_path, state)), [shared])

    found = loader.find_parameters({f"{name}.weight": (2, 2) for name in "abcd"}, shared, num_layers=0)

    first, second, *others = [parameter.key for parameter in found]
    assert first == second and first not in others


def find_tiny(loader: WeightLoader) -> Iterator[StoredParameter]:
    return loader.find_parameters(SHAPES, TABLE, num_layers=2)


READ_ALL = """
import sys
sys.modules["torch"] = None  # an import of it fails
from pathlib import Path
from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.merged_weights import open_model_weights

try:
    weights = open_model_weights(Checkpoint("test", Path(sys.argv[1])))
    print([(name, str(weights.get(name).dtype)) for name in weights.names()])
except LoadError as error:
    print(error)
"""


def read_without_torch(folder: Path) -> str:
    command = [sys.executable, "-c", READ_ALL, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_safetensors_are_read_without_torch(tmp_path: Path) -> None:
    stored = {"a.weight": torch.ones(2, 2).to(torch.float8_e4m3fn), "a.weight_scale": torch.ones(2, 1)}
    saved(tmp_path, {**stored, "b": torch.ones(3, dtype=torch.bfloat16)})
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "fp8"}}))

    assert sorted(literal_eval(read_without_torch(tmp_path))) == [("a.weight", "float32"), ("b", "bfloat16")]


def test_a_pickle_cannot_be_read_without_torch(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "pytorch_model.bin")

    printed = read_without_torch(tmp_path)

    assert printed == (
        f"{tmp_path}/pytorch_model.bin is in the format of PyTorch, which cannot be read without torch; convert it to "
        f"safetensors or install torch: {torch_command()}"
    )


@pytest.mark.parametrize("prefix", ["", "model.", "bert."])
def test_the_prefix_in_use_is_found_and_left_out(tmp_path: Path, prefix: str) -> None:
    state = tiny_state(prefix) | {
        "classifier.weight": torch.randn(2, 4),
        f"{prefix}pooler.dense.weight": torch.randn(4, 4),
    }
    weights = open_weights(saved(tmp_path, state))
    loader = WeightLoader(weights, [TABLE], ("model.", "bert.", ""))
    backbone, head = make_on_meta(Tiny), nn.ModuleDict({"classifier": nn.Linear(4, 2, bias=False, device="meta")})

    assert loader.has("classifier.weight")
    assert not loader.has("classifier.bias")
    assert loader.has("pooler.dense.weight")
    load_module(loader, backbone, TABLE, num_layers=2, dtype=torch.float32, device=CPU)
    load_module(loader, head, {"classifier": "classifier"}, num_layers=0, dtype=torch.float32, device=CPU)
    loader.check_complete(unused_weights=("pooler.*",))

    assert_close(head.get_parameter("classifier.weight"), state["classifier.weight"])


def test_an_entry_may_name_a_parameter_itself(tmp_path: Path) -> None:
    table: dict[str, str | list[str]] = {"weight": "old.kernel", "bias": "old.offset"}
    state = {"old.kernel": torch.randn(2, 3), "old.offset": torch.randn(2)}
    loader = WeightLoader(open_weights(saved(tmp_path, state)), [table])
    module = nn.Linear(3, 2, device="meta")

    load_module(loader, module, table, num_layers=0, dtype=torch.float32, device=CPU)
    loader.check_complete()

    assert_close(module.bias.data, state["old.offset"])


def test_a_tensor_read_directly_counts_as_used(tmp_path: Path, refused: Any) -> None:
    loader = WeightLoader(open_weights(saved(tmp_path, {"a.weight": torch.ones(2)})), [{"a": "a"}])

    assert_close(to_tensor(loader.read("a.weight")), torch.ones(2))
    loader.check_complete()
    with refused("the checkpoint has no b.weight"):
        loader.read("b.weight")


def test_every_parameter_and_every_tensor_must_be_used(tmp_path: Path, refused: Any) -> None:
    state = tiny_state()
    del state["encoder.1.key.weight"]
    state |= {f"extra.{number}": torch.ones(1) for number in range(7)}

    with refused(
        "model.safetensors",
        "missing in the checkpoint: encoder.1.key.weight",
        "unexpected in the checkpoint: extra.0, extra.1, extra.2, extra.3, extra.4 and 2 more",
    ):
        load_tiny(open_weights(saved(tmp_path, state)))


def test_a_parameter_in_no_table_is_named(tmp_path: Path, refused: Any) -> None:
    loader = WeightLoader(open_weights(saved(tmp_path, {"a.weight": torch.ones(2, 2)})), [{"a": "a"}])
    load_module(loader, make_on_meta(Layer), {"a": "a"}, num_layers=0, dtype=torch.float32, device=CPU)

    with refused("qkv.weight (not in the weight table)", "unexpected in the checkpoint: a.weight"):
        loader.check_complete()


def test_tables_that_follow_from_the_config_are_no_weights(tmp_path: Path) -> None:
    state = tiny_state() | {
        "embeddings.position_ids": torch.arange(4),
        "encoder.0.rotary_emb.inv_freq": torch.ones(2),
    }

    load_tiny(open_weights(saved(tmp_path, state)))


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path, refused: Any) -> None:
    state = tiny_state() | {"embeddings.words.weight": torch.randn(8, 4)}

    with refused("model.safetensors", "embeddings.words.weight has shape [8, 4]", "requires [7, 4]"):
        load_tiny(open_weights(saved(tmp_path, state)))


def test_parts_that_do_not_fit_together_are_named(tmp_path: Path, refused: Any) -> None:
    state = tiny_state() | {"encoder.0.key.weight": torch.randn(4, 5)}

    with refused("encoder.0.query.weight + encoder.0.key.weight", "[4, 4] + [4, 5] + [4, 4]", "requires [12, 4]"):
        load_tiny(open_weights(saved(tmp_path, state)))


def test_the_error_for_another_checkpoint_lists_its_names(tmp_path: Path, refused: Any) -> None:
    weights = open_weights(saved(tmp_path, {"other.weight": torch.ones(2)}))

    with refused("embeddings.words.weight or bert.embeddings.words.weight", "found other.weight"):
        WeightLoader(weights, [TABLE], ("", "bert."))
