"""Checkpoints with quantized weights give the results of the weights that they stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.testing import assert_close
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from cenote import LLM
from cenote.config.device import Device
from cenote.kernels.cpu_features import CPUFeatures
from cenote.layers.torch_dtypes import to_array, to_tensor
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.linear_formats import resolve_quantization
from cenote.loading.merged_weights import open_model_weights
from cenote.loading.quantized.methods import read_quantization_config, stores_fp8
from cenote.loading.quantized.scaled import scale_weight
from tests.loading import quantized_formats as formats
from tests.loading.quantized_formats import Packer
from tests.tiny import change_config, save_tiny

TEXTS = [[7, 8, 9], [10, 11], list(range(5, 40))]
BLOCK = {"quant_method": "fp8", "weight_block_size": [24, 24], "activation_scheme": "dynamic"}
FP8 = {"quant_method": "fp8", "activation_scheme": "static"}
FBGEMM = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}
BNB4 = {"quant_method": "bitsandbytes", "load_in_4bit": True}


def compressed(form: str, kind: str, bits: int = 8, strategy: str = "channel") -> dict[str, Any]:
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True}
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}


def gptq(bits: int, **changes: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": 16, "desc_act": False, **changes}


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm", "zero_point": True}
FORMATS: dict[str, tuple[dict[str, Any], Packer]] = {
    "fp8 block": (BLOCK, formats.fp8_block),
    "fp8 tensor": (FP8, formats.fp8_tensor),
    "fp8 channel": (FBGEMM, formats.fp8_channel),
    "compressed fp8 channel": (compressed("float-quantized", "float"), formats.fp8_channel),
    "compressed fp8 tensor": (compressed("float-quantized", "float", strategy="tensor"), formats.fp8_tensor),
    "compressed int8": (compressed("int-quantized", "int"), formats.int8_channel),
    "compressed int8 asymmetric": (compressed("int-quantized", "int"), formats.int8_channel_asymmetric),
    "compressed int4": (compressed("pack-quantized", "int", 4), formats.packed_compressed(4, symmetric=True)),
    "compressed int4 zeros": (compressed("pack-quantized", "int", 4), formats.packed_compressed(4, symmetric=False)),
    "compressed packed int8": (compressed("pack-quantized", "int"), formats.packed_compressed(8, symmetric=True)),
    "gptq 4 bit": (gptq(4), formats.gptq(4)),
    "gptq 8 bit": (gptq(8), formats.gptq(8)),
    "gptq 2 bit": (gptq(2), formats.gptq(2)),
    "gptq asymmetric": (gptq(4, sym=False), formats.gptq(4, symmetric=False)),
    "gptq desc_act": (gptq(4, desc_act=True), formats.gptq(4, symmetric=False, desc_act=True)),
    "gptq v2": (gptq(4, checkpoint_format="gptq_v2"), formats.gptq(4, symmetric=False, zero_offset=0)),
    "gptq one group": (gptq(4, group_size=-1), formats.gptq(4, size=1 << 20)),
    "awq": (AWQ, formats.awq),
    "bnb int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, formats.bnb_int8),
    "bnb nf4": (BNB4, formats.bnb_4bit("nf4", nested=False)),
    "bnb nf4 nested": (BNB4, formats.bnb_4bit("nf4", nested=True)),
    "bnb fp4": (BNB4, formats.bnb_4bit("fp4", nested=False)),
}


def quantize_checkpoint(folder: Path, config: dict[str, Any], pack: Packer) -> dict[str, Tensor]:
    """Replace the linear weights in model.safetensors by packed ones; return the weights that they stand for."""
    stored: dict[str, Tensor] = {}
    exact: dict[str, Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            stored[name] = exact[name] = tensor
            continue
        packed, exact[name] = pack(tensor)
        stored |= {name.removesuffix("weight") + part: value for part, value in packed.items()}
    save_file(stored, folder / "model.safetensors")
    change_config(folder, quantization_config=config)
    return exact


def embed(folder: Path, **options: Any) -> Tensor:
    with LLM(str(folder), device="cpu", dtype="float32", **options) as llm:
        return torch.tensor([item.outputs.embedding for item in llm.embed(TEXTS, use_tqdm=False)])


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders with the same model: one to quantize, one for its exact weights."""
    for name in ("quantized", "exact"):
        (tmp_path / name).mkdir()
        save_tiny(tmp_path / name, "Qwen2Model")
    return tmp_path / "quantized", tmp_path / "exact"


@pytest.mark.parametrize("name", FORMATS)
def test_a_quantized_checkpoint_gives_the_results_of_its_weights(name: str, folders: tuple[Path, Path]) -> None:
    quantized, reference = folders
    before = embed(reference)
    exact = quantize_checkpoint(quantized, *FORMATS[name])
    save_file(exact, reference / "model.safetensors")

    weights = open_model_weights(Checkpoint("test", quantized))

    assert sorted(weights.names()) == sorted(exact)
    for tensor in exact:
        assert_close(to_tensor(weights.get(tensor)).float(), exact[tensor].float(), rtol=1e-6, atol=1e-6)
    found, expected = embed(quantized), embed(reference)
    assert_close(found, expected, rtol=0, atol=1e-4)
    assert not torch.allclose(found, before, rtol=0, atol=1e-4)


def test_blocks_of_fp8_are_scaled_as_transformers_does() -> None:
    stored, _ = formats.fp8_block(torch.randn(48, 64), size=16)
    weight, scales = stored["weight"], stored["weight_scale_inv"]

    ours = to_tensor(scale_weight("layer", to_array(weight), to_array(scales), (16, 16)))

    theirs = Fp8Dequantize(None)._dequantize_one(weight, scales, torch.float32)
    assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["fp8 block", "gptq 4 bit", "bnb nf4"])
def test_a_quantized_checkpoint_can_be_quantized_to_int8(name: str, folders: tuple[Path, Path]) -> None:
    quantized, reference = folders
    save_file(quantize_checkpoint(quantized, *FORMATS[name]), reference / "model.safetensors")

    found, expected = embed(quantized, quantization="int8"), embed(reference, quantization="int8")

    assert_close(found, expected, rtol=0, atol=1e-4)


def test_an_older_gptq_checkpoint_has_its_settings_in_a_file(folders: tuple[Path, Path]) -> None:
    quantized, reference = folders
    config, pack = FORMATS["gptq 4 bit"]
    save_file(quantize_checkpoint(quantized, config, pack), reference / "model.safetensors")
    change_config(quantized, drop=("quantization_config",))
    (quantized / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 16}))

    assert_close(embed(quantized), embed(reference), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quant_method": "quip"}, ["quant_method='quip'", "fp8, fbgemm_fp8, compressed-tensors, gptq, awq, bitsandb"]),
        ({"bits": 4}, ["quant_method=None"]),
        ([4], ["quantization_config is a list"]),
    ],
)
def test_an_unknown_method_is_refused_with_the_supported_ones(
    config: Any, words: list[str], tmp_path: Path, refused: Any
) -> None:
    save_tiny(tmp_path, "Qwen2Model")
    change_config(tmp_path, quantization_config=config)

    with refused(*words):
        LLM(str(tmp_path), device="cpu")


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("gptq 4 bit", {"bits": 3}, ["weights of 3 bits are not supported", "[2, 4, 8]"]),
        ("gptq 4 bit", {"checkpoint_format": "marlin"}, ["checkpoint_format 'marlin'", "gptq, gptq_v2"]),
        ("awq", {"version": "gemv"}, ["AWQ version 'gemv'", "gemm"]),
        ("compressed int8", {"format": "marlin-24"}, ["'marlin-24' is not supported", "pack-quantized"]),
        ("fp8 block", {"weight_block_size": [128, 128]}, ["do not fit", "[128, 128]"]),
        ("fp8 block", {"weight_block_size": 16}, ["invalid weight_block_size=16"]),
    ],
)
def test_settings_that_are_not_supported_are_refused(
    name: str, changes: dict[str, Any], words: list[str], folders: tuple[Path, Path], refused: Any
) -> None:
    config, pack = FORMATS[name]
    quantize_checkpoint(folders[0], config, pack)
    change_config(folders[0], quantization_config={**config, **changes})

    with refused(*words):
        LLM(str(folders[0]), device="cpu")


@pytest.mark.parametrize(
    ("name", "part"),
    [("gptq 4 bit", "qzeros"), ("awq", "scales"), ("bnb nf4", "weight.absmax"), ("bnb int8", "weight")],
)
def test_a_missing_part_of_a_quantized_weight_is_refused(
    name: str, part: str, folders: tuple[Path, Path], refused: Any
) -> None:
    quantize_checkpoint(folders[0], *FORMATS[name])
    stored = load_file(folders[0] / "model.safetensors")
    del stored[f"layers.1.mlp.down_proj.{part}"]
    save_file(stored, folders[0] / "model.safetensors")

    with refused(f"has no layers.1.mlp.down_proj.{part}"):
        LLM(str(folders[0]), device="cpu")


def test_damaged_quantized_weights_are_refused(folders: tuple[Path, Path], refused: Any) -> None:
    quantize_checkpoint(folders[0], *FORMATS["gptq desc_act"])
    stored = load_file(folders[0] / "model.safetensors")
    stored["layers.0.mlp.up_proj.g_idx"][3] = 99
    save_file(stored, folders[0] / "model.safetensors")

    with refused("layers.0.mlp.up_proj.g_idx has values outside"):
        LLM(str(folders[0]), device="cpu")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("fp8 block", True), ("compressed fp8 channel", True), ("compressed int8", False), ("awq", False)],
)
def test_fp8_weights_stay_fp8_on_a_gpu_that_multiplies_them(
    name: str, expected: bool, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    change_config(folders[0], quantization_config=FORMATS[name][0])
    is_fp8 = stores_fp8(read_quantization_config(Checkpoint("test", folders[0])))
    cpu, gpu = CPUFeatures("x86", frozenset()), Device("cuda", 0)

    monkeypatch.setattr("cenote.kernels.fp8.can_multiply_fp8", lambda device: True)
    assert resolve_quantization(None, gpu, cpu, stores_fp8=is_fp8).value == ("fp8" if expected else None)
    assert resolve_quantization(None, Device("cpu"), cpu, stores_fp8=is_fp8).value is None
    monkeypatch.setattr("cenote.kernels.fp8.can_multiply_fp8", lambda device: False)
    assert resolve_quantization(None, gpu, cpu, stores_fp8=is_fp8).value is None
