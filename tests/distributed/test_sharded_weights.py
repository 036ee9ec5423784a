"""A rank reads its part of the layers from the checkpoint, and nothing else of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.layers.parallel_group import ParallelGroup
from cenote.layers.torch_dtypes import to_tensor
from cenote.loading.load import load_model
from cenote.loading.rank_model import load_rank
from cenote.loading.weights import open_weights_file
from tests.tiny import change_config, save_tiny


def load_ranks(folder: Path, num_ranks: int, **options: Any) -> list[Any]:
    config = EngineConfig.from_kwargs(str(folder), dtype="float32", device="cpu", **options)
    return [load_rank(config, ParallelGroup(rank, num_ranks)) for rank in range(num_ranks)]


def count_layer_bytes(folder: Path) -> tuple[int, int]:
    """Return the bytes of the matrices of all layers, and of everything else."""
    tensors = load_file(folder / "model.safetensors")
    in_layers = {name: tensor for name, tensor in tensors.items() if "layers." in name and ".gate.weight" not in name}
    matrices = sum(tensor.nbytes for tensor in in_layers.values() if tensor.dim() > 1)
    return matrices, sum(t.nbytes for t in tensors.values()) - matrices


@pytest.mark.parametrize("model", ["LlamaModel", "Qwen3MoeModel", "DeepseekV3Model"])
@pytest.mark.parametrize("is_fused", [False, True], ids=["separate experts", "fused experts"])
def test_a_rank_reads_its_share_of_the_matrices(model: str, is_fused: bool, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, model, num_key_value_heads=4, intermediate_size=64)
    reference.save_pretrained(tmp_path, save_original_format=not is_fused)
    latent = 2 * 3 * (12 + 8 + 4) * 32 * 4 if model == "DeepseekV3Model" else 0  # replicated projections to latents
    matrices, others = count_layer_bytes(tmp_path)

    ranks = load_ranks(tmp_path, 2)

    for rank in ranks:
        assert rank.num_read_bytes <= matrices / 2 + others + latent


def test_the_parameters_of_the_ranks_make_up_those_of_the_model(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Qwen3MoeModel", num_key_value_heads=4)
    whole = load_model(EngineConfig.from_kwargs(str(tmp_path), dtype="float32", device="cpu")).backbone

    first, second = (rank.backbone for rank in load_ranks(tmp_path, 2))

    experts = "layers.0.mlp.experts"
    gate, up = whole.get_parameter(f"{experts}.up").chunk(2, dim=1)
    for rank, backbone in enumerate((first, second)):
        halves = [part.chunk(2, dim=1)[rank] for part in (gate, up)]
        assert_close(backbone.get_parameter(f"{experts}.up"), torch.cat(halves, dim=1))
        assert_close(
            backbone.get_parameter(f"{experts}.down"), whole.get_parameter(f"{experts}.down").chunk(2, dim=2)[rank]
        )


def test_a_range_of_a_tensor_is_read_alone(tmp_path: Path) -> None:
    tensor = torch.arange(24.0).view(6, 4)
    save_file({"a": tensor}, tmp_path / "model.safetensors")
    weights = open_weights_file(tmp_path / "model.safetensors")

    assert_close(to_tensor(weights.get_range("a", 0, 2, 5)), tensor[2:5])
    assert_close(to_tensor(weights.get_range("a", 1, 1, 3)), tensor[:, 1:3])
    assert weights.num_read_bytes == (3 * 4 + 6 * 2) * 4


def test_a_checkpoint_in_pytorch_format_is_split(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "LlamaModel")
    expected = [rank.backbone.state_dict() for rank in load_ranks(tmp_path, 2)]
    (tmp_path / "model.safetensors").unlink()
    torch.save(reference.state_dict(), tmp_path / "pytorch_model.bin")

    for rank, state in zip(load_ranks(tmp_path, 2), expected, strict=True):
        for name, tensor in rank.backbone.state_dict().items():
            assert_close(tensor, state[name])


def test_a_matrix_of_another_size_than_in_the_config_is_named(tmp_path: Path) -> None:
    save_tiny(tmp_path, "LlamaModel")
    change_config(tmp_path, intermediate_size=64)

    with pytest.raises(LoadError, match=r"gate_proj.* has shape \[48, 32\] .* requires \[128, 32\]"):
        load_ranks(tmp_path, 2)
