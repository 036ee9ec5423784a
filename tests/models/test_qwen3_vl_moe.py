"""Qwen3-VL-MoE equals Transformers on the same inputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import normalize
from torch.testing import assert_close
from transformers import Qwen3VLMoeForConditionalGeneration

from cenote import LLM
from tests.models.tiny_qwen3_vl import IMAGE, TEXT, VISION, make_image, save_model, states_of
from tests.tiny import EXPERTS

# the second layer is dense; the expert size differs from the hidden size
CONFIG = {"text_config": TEXT | EXPERTS | {"mlp_only_layers": [1]}, "vision_config": VISION}
INPUTS: list[tuple[str, list[PIL.Image.Image]]] = [
    ("the cat is in the city", []),
    (f"a {IMAGE} cat", [make_image(40, 40)]),
    (f"{IMAGE} two {IMAGE} how big is the old river in berlin?", [make_image(100, 30, 1), make_image(9, 50, 2)]),
    ("a", []),
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    folder = tmp_path_factory.mktemp("qwen3_vl_moe")
    yield folder, save_model(folder, Qwen3VLMoeForConditionalGeneration, CONFIG)


def token_vectors(folder: Path) -> list[Tensor]:
    prompts = [{"prompt": text, "multi_modal_data": {"image": images}} if images else text for text, images in INPUTS]
    with LLM(str(folder), dtype="float32") as llm:
        return [out.outputs.data.float() for out in llm.encode(prompts, pooling_task="token_embed", use_tqdm=False)]


def assert_as_reference(actual: list[Tensor], saved: tuple[Path, Any]) -> None:
    folder, reference = saved
    for mine, item in zip(actual, INPUTS, strict=True):
        assert_close(mine, normalize(states_of(reference, folder, *item), dim=-1), atol=1e-4, rtol=0)


def test_texts_and_images_equal_transformers(saved: tuple[Path, Any]) -> None:
    assert_as_reference(token_vectors(saved[0]), saved)


def published(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Transpose the experts to [experts, in, out], as in published checkpoints."""
    return {name: tensor.transpose(1, 2).contiguous() if ".experts." in name else tensor}


def one_by_one(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Store experts separately, as text-only MoE checkpoints do."""
    if ".experts." not in name:
        return {name: tensor}
    place, _, kind = name.rpartition(".")
    parts = (
        {"down_proj": tensor}
        if kind == "down_proj"
        else dict(zip(("gate_proj", "up_proj"), tensor.chunk(2, 1), strict=True))
    )
    return {
        f"{place}.{number}.{part}.weight": expert.contiguous()
        for part, experts in parts.items()
        for number, expert in enumerate(experts)
    }


@pytest.mark.parametrize("layout", [published, one_by_one])
def test_experts_that_are_stored_in_another_way_are_the_same(
    layout: Any, tmp_path: Path, saved: tuple[Path, Any]
) -> None:
    save_model(tmp_path, Qwen3VLMoeForConditionalGeneration, CONFIG)
    stored = load_file(tmp_path / "model.safetensors")
    changed = {new: value for name, tensor in stored.items() for new, value in layout(name, tensor).items()}
    save_file(changed, tmp_path / "model.safetensors")

    assert_as_reference(token_vectors(tmp_path), saved)
