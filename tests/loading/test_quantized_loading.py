"""Weights are quantized while they are read: the memory that loading needs is that of the quantized model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from cenote import LLM
from cenote.config.engine import EngineConfig
from cenote.kernels.cpu.library import load_level
from cenote.kernels.cpu_features import CPU_LEVEL, CPUFeatures, cpu_features
from cenote.layers import post_load
from cenote.loading.load import load_model
from tests.kernels.levels import LEVELS, needs_level, use_level
from tests.tiny import change_config, save_tiny

TEXTS = [[7, 8, 9], [10, 11], list(range(5, 40))]
HIDDEN, INTERMEDIATE, LAYERS = 2048, 8192, 5
LINEAR_BYTES_PER_LAYER = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * INTERMEDIATE  # in int8

# prints the growth of the peak of resident memory while the model loads, in bytes. Not ru_maxrss, which a child process
# inherits from its parent.
LOAD = """
import re, sys
import torch
from cenote.config.engine import EngineConfig
from cenote.loading.load import load_model

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024

torch.randn(600, 600) @ torch.randn(600, 600)
before = peak()
model = load_model(EngineConfig.from_kwargs(sys.argv[1], device="cpu", quantization=sys.argv[2] or None))
print(peak() - before)
"""


@pytest.fixture(scope="module")
def large_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder of 670 MB in bfloat16, one file per layer."""
    folder = tmp_path_factory.mktemp("large")
    save_tiny(folder, "LlamaModel")
    (folder / "model.safetensors").unlink()
    change_config(
        folder,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=16,
        num_key_value_heads=16,
        head_dim=HIDDEN // 16,
        dtype="bfloat16",
    )
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    files = {
        "model-0.safetensors": {"embed_tokens.weight": noise(vocabulary, HIDDEN), "norm.weight": torch.ones(HIDDEN)}
    }
    tensors = layer_tensors()
    for layer in range(LAYERS):
        renamed = {f"layers.{layer}.{name}": tensor for name, tensor in tensors.items()}
        files[f"model-{layer + 1}.safetensors"] = renamed
    for file, stored in files.items():
        save_file(stored, folder / file)
    places = {name: file for file, stored in files.items() for name in stored}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def noise(*shape: int) -> Tensor:
    """Return weights of a model that is close to the exact one in int8, so that no layer is left unquantized."""
    return (torch.randn(shape) * 0.02).bfloat16()


def layer_tensors() -> dict[str, Tensor]:
    square = {f"self_attn.{part}_proj.weight": noise(HIDDEN, HIDDEN) for part in "qkvo"}
    wide = {f"mlp.{part}_proj.weight": noise(INTERMEDIATE, HIDDEN) for part in ("gate", "up")}
    norms = {f"{part}_layernorm.weight": torch.ones(HIDDEN) for part in ("input", "post_attention")}
    return {**square, **wide, "mlp.down_proj.weight": noise(HIDDEN, INTERMEDIATE), **norms}


def peak_growth(folder: Path, quantization: str) -> int:
    command = [sys.executable, "-c", LOAD, str(folder), quantization]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


def embed(folder: Path, **options: Any) -> Tensor:
    with LLM(str(folder), device="cpu", dtype="float32", **options) as llm:
        return torch.tensor([item.outputs.embedding for item in llm.embed(TEXTS, use_tqdm=False)])


@pytest.mark.parametrize("model", ["BertModel", "LlamaModel", "T5EncoderModel", "ModernBertModel"])
@pytest.mark.parametrize("isa", ["baseline", None])
def test_embeddings_of_int8_weights_are_close_to_the_exact_ones(
    model: str, isa: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isa is not None:
        monkeypatch.setenv(CPU_LEVEL, isa)
    else:  # quantized products, whatever this CPU has
        monkeypatch.setattr(post_load, "cpu_features", lambda: CPUFeatures("x86", frozenset({"amx_int8"})))
    save_tiny(tmp_path, model)
    expected = embed(tmp_path)

    found = embed(tmp_path, quantization="int8")

    assert not torch.equal(found, expected)
    assert torch.nn.functional.cosine_similarity(found, expected).min() > 0.98


@needs_level
def test_layers_that_share_weights_share_the_quantized_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny(tmp_path, "AlbertModel", num_hidden_layers=3)

    with use_level(LEVELS[-1], monkeypatch):
        model = load_model(EngineConfig.from_kwargs(str(tmp_path), device="cpu", quantization="int8"))

    linears = model.backbone.linears
    for name in ("mlp.up", "mixer.qkv"):
        assert linears[f"layers.0.{name}"] is linears[f"layers.1.{name}"] is linears[f"layers.2.{name}"]


def test_the_stored_weight_of_a_quantized_layer_is_not_kept(tmp_path: Path) -> None:
    save_tiny(tmp_path, "LlamaModel")

    model = load_model(EngineConfig.from_kwargs(str(tmp_path), device="cpu", dtype="float32", quantization="int8"))

    names = [name for name, _ in model.backbone.named_parameters()]
    assert names and all("norm" in name or "embed" in name for name in names)


def test_a_missing_weight_of_a_quantized_layer_is_reported(tmp_path: Path, refused: Any) -> None:
    save_tiny(tmp_path, "LlamaModel")
    state = load_file(tmp_path / "model.safetensors")
    del state["layers.1.mlp.down_proj.weight"]
    save_file(state, tmp_path / "model.safetensors")

    with refused("missing in the checkpoint: layers.1.mlp.down_proj.weight"):
        load_model(EngineConfig.from_kwargs(str(tmp_path), device="cpu", quantization="int8"))


@pytest.mark.slow
def test_loading_in_int8_needs_the_memory_of_the_int8_model_and_about_one_layer(
    large_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    level = load_level()
    if level is not None and "int8" in level.products:  # reads float32 weights first, to check int8 against them
        monkeypatch.setenv(CPU_LEVEL, "baseline")
    stored = sum(file.stat().st_size for file in large_checkpoint.glob("*.safetensors"))
    assert stored > 600e6

    growth = peak_growth(large_checkpoint, "int8")

    # With AMX, layers are packed again after all have been read, which leaves more gaps in the heap.
    share = 1.6 if cpu_features().has_amx else 1.3
    assert growth < share * LAYERS * LINEAR_BYTES_PER_LAYER + LINEAR_BYTES_PER_LAYER
    assert growth < 0.9 * stored
