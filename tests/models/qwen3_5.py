"""Tiny Qwen3.5 checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import PIL.Image
import torch
from transformers import Qwen3_5ForConditionalGeneration, Qwen3_5TextConfig

from tests.models.tiny_qwen3_vl import IMAGE, TOKENS, make_image, save_model, save_projection
from tests.models.tiny_qwen3_vl import VISION as QWEN3_VISION
from tests.tiny import VOCAB_SIZE, change_config, randomize, save_tokenizer

TEXT: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default", "mrope_section": [2, 1, 1]}
    | {"mrope_interleaved": True, "partial_rotary_factor": 0.5},
}


def save_text(folder: Path, model_class: type[Any], **changes: Any) -> Any:
    """Save the text model only."""
    save_tokenizer(folder, TOKENS, max_length=512, two_types=False)
    model = model_class(Qwen3_5TextConfig(**TEXT, **changes)).eval().requires_grad_(False)
    randomize(model)
    remember(model)
    model.save_pretrained(folder)
    return model


def remember(model: torch.nn.Module) -> None:
    """Set decay rates so that the state lasts for a hundred tokens; random rates decay in a few."""
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):
            parameter.data -= 4


VISION = {key: value for key, value in QWEN3_VISION.items() if key != "deepstack_visual_indexes"}


def save(
    folder: Path, model_class: type[Any] = Qwen3_5ForConditionalGeneration, *, std: float = 0.3, **changes: Any
) -> Any:
    model = save_model(folder, model_class, {"text_config": TEXT, "vision_config": VISION, **changes}, std=std)
    remember(model)
    model.save_pretrained(folder)
    return model


def save_retriever(folder: Path, *, bias: bool = True, size: int = 8, **changes: Any) -> tuple[Any, torch.nn.Linear]:
    """Save as the ColPali trainer does: names without the first component, with a projection."""
    model = save(folder)
    layer = save_projection(
        folder, "custom_text_proj", bias=bias, renamed=lambda name: name.removeprefix("model."), size=size
    )
    change_config(folder, architectures=["ColQwen3_5"], model_type="colqwen3_5", **changes)
    return model, layer


SQUARE, WIDE, TALL = make_image(40, 40), make_image(100, 30, 1), make_image(9, 50, 2)

LONG = "how big is the old river in berlin and who live in it? " * 11  # more than two full chunks

# texts of many lengths, one image, several of different sizes, shared and repeated images
INPUTS: list[tuple[str, list[PIL.Image.Image]]] = [
    ("the cat is in the city", []),
    (f"a {IMAGE} cat", [SQUARE]),
    (LONG, []),
    (f"{IMAGE} two {IMAGE} three {IMAGE} {LONG}", [WIDE, TALL, SQUARE]),
    ("a", []),
    (IMAGE, [TALL]),
    (f"{IMAGE} and {IMAGE}", [SQUARE, SQUARE]),
    (LONG[:400], []),
]
