"""LoRA adapters of vision models apply to the text model, not to the tower."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cenote import LLM
from cenote.errors import LoadError
from cenote.protocol.params import LoRARequest
from tests.models.tiny_qwen3_vl import IMAGE, make_image, save_tiny_qwen3_vl

PROMPTS: list[Any] = [
    {"prompt": f"{IMAGE}a red bird", "multi_modal_data": {"image": make_image(40, 30)}},
    "a red bird",
    {"prompt": f"two {IMAGE}", "multi_modal_data": {"image": make_image(20, 50, seed=1)}},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeing")
    save_tiny_qwen3_vl(folder)
    return folder


def changed(folder: Path, target: Path, part: str, *, merged: bool) -> Path:
    """Write the model with changed layers, or an adapter with this change."""
    weights, adapter = load_file(folder / "model.safetensors"), dict[str, torch.Tensor]()
    generator = torch.Generator().manual_seed(0)
    target.mkdir()
    for name in [name for name in weights if part in name and name.endswith(".weight")]:
        rows, columns = weights[name].shape
        down, up = torch.randn(4, columns, generator=generator) * 0.3, torch.randn(rows, 4, generator=generator) * 0.3
        weights[name] = weights[name] + up @ down
        module = f"base_model.model.{name.removesuffix('.weight')}"
        adapter |= {f"{module}.lora_A.weight": down, f"{module}.lora_B.weight": up}
    if not merged:
        save_file(adapter, target / "adapter_model.safetensors")
        (target / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 4}))
        return target
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    return target


def vectors(llm: LLM, **how: Any) -> torch.Tensor:
    return torch.stack([output.outputs.data for output in llm.embed(PROMPTS, use_tqdm=False, **how)])


def test_an_adapter_reads_texts_and_images_like_the_model_it_is_merged_into(folder: Path, tmp_path: Path) -> None:
    adapter = changed(folder, tmp_path / "adapter", "self_attn.q_proj", merged=False)
    merged = changed(folder, tmp_path / "merged", "self_attn.q_proj", merged=True)

    with LLM(str(folder), dtype="float32") as llm:
        plain = vectors(llm)
    with LLM(str(merged), dtype="float32") as llm:
        other = vectors(llm)
    with LLM(str(folder), dtype="float32", enable_lora=True) as llm:
        request = LoRARequest("reader", 1, str(adapter))
        torch.testing.assert_close(vectors(llm), plain, atol=1e-5, rtol=0)
        torch.testing.assert_close(vectors(llm, lora_request=request), other, atol=1e-5, rtol=0)
        mixed = vectors(llm, lora_request=[request, None, None])
    torch.testing.assert_close(mixed, torch.stack((other[0], plain[1], plain[2])), atol=1e-5, rtol=0)
    assert not torch.allclose(plain, other, atol=1e-2)


def test_an_adapter_of_the_tower_is_refused(folder: Path, tmp_path: Path) -> None:
    adapter = changed(folder, tmp_path / "adapter", "visual.blocks.0.attn.proj", merged=False)

    with pytest.raises(
        LoadError, match="not supported in the vision tower .*visual.blocks.0.attn.proj.*merge the adapter"
    ):
        LLM(str(folder), dtype="float32", enable_lora=True, lora_modules=[f"eyes={adapter}"])
