"""Generated benchmark images and a CLIP checkpoint of common size with random weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from safetensors.torch import save_file
from torch import Tensor

# (width, height), used cyclically: common sizes of photographs
IMAGE_SIZES = ((640, 480), (480, 640), (500, 333), (1024, 768))
PATCH_SIZE, IMAGE_SIDE = 32, 224
VISION_SIZES = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
# the text model is not measured: small, so that it loads quickly
TEXT_SIZES = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1}
VOCABULARY, POSITIONS, PROJECTION_SIZE = 30522, 77, 512


def draw_images(folder: Path, count: int, seed: int) -> list[str]:
    """Write random smooth colour images as JPEG files; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    random, paths = np.random.default_rng(seed), []
    for number in range(count):
        width, height = IMAGE_SIZES[number % len(IMAGE_SIZES)]
        spots = random.integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
        paths.append(str(folder / f"{number}.jpg"))
        PIL.Image.fromarray(spots).resize((width, height), PIL.Image.Resampling.BICUBIC).save(paths[-1], quality=90)
    return paths


def write_clip(folder: Path, tokenizer: Path, vision_sizes: dict[str, int] | None = None) -> None:
    """Write a CLIP checkpoint with random weights: ViT-B/32, or with the given vision sizes; any tokenizer works."""
    folder.mkdir(parents=True)
    shutil.copy(tokenizer, folder / "tokenizer.json")
    vision_sizes = vision_sizes or VISION_SIZES
    random = torch.Generator().manual_seed(0)

    def draw(*size: int, around: float = 0.0) -> Tensor:
        return (torch.randn(size, generator=random) * 0.02 + around).bfloat16()

    config: dict[str, Any] = {
        "model_type": "clip",
        "architectures": ["CLIPModel"],
        "projection_dim": PROJECTION_SIZE,
        "torch_dtype": "bfloat16",
        "text_config": {
            **TEXT_SIZES,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": POSITIONS,
            "eos_token_id": 102,
        },
        "vision_config": {**vision_sizes, "image_size": IMAGE_SIDE, "patch_size": PATCH_SIZE},
    }
    (folder / "config.json").write_text(json.dumps(config))
    preprocessor = {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": IMAGE_SIDE},
        "crop_size": IMAGE_SIDE,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    save_file(dict(_clip_tensors(vision_sizes, draw)), folder / "model.safetensors", metadata={"format": "pt"})


def _clip_tensors(vision_sizes: dict[str, int], draw: Callable[..., Tensor]) -> Iterator[tuple[str, Tensor]]:
    num_positions = (IMAGE_SIDE // PATCH_SIZE) ** 2 + 1
    tables = {
        "vision_model.embeddings.class_embedding": (vision_sizes["hidden_size"],),
        "vision_model.embeddings.patch_embedding.weight": (vision_sizes["hidden_size"], 3, PATCH_SIZE, PATCH_SIZE),
        "vision_model.embeddings.position_embedding.weight": (num_positions, vision_sizes["hidden_size"]),
        "text_model.embeddings.token_embedding.weight": (VOCABULARY, TEXT_SIZES["hidden_size"]),
        "text_model.embeddings.position_embedding.weight": (POSITIONS, TEXT_SIZES["hidden_size"]),
        "visual_projection.weight": (PROJECTION_SIZE, vision_sizes["hidden_size"]),
        "text_projection.weight": (PROJECTION_SIZE, TEXT_SIZES["hidden_size"]),
        "logit_scale": (),
    }
    yield from ((name, draw(*shape)) for name, shape in tables.items())
    # the checkpoint spells it "layrnorm"
    norms = {"vision_model": ("pre_layrnorm", "post_layernorm"), "text_model": ("final_layer_norm",)}
    for part_name, sizes in (("vision_model", vision_sizes), ("text_model", TEXT_SIZES)):
        width, inner = sizes["hidden_size"], sizes["intermediate_size"]
        norm_names = [f"{part_name}.{name}" for name in norms[part_name]]
        for number in range(sizes["num_hidden_layers"]):
            layer = f"{part_name}.encoder.layers.{number}"
            linears = {f"self_attn.{part}_proj": (width, width) for part in ("q", "k", "v", "out")}
            for name, shape in (linears | {"mlp.fc1": (inner, width), "mlp.fc2": (width, inner)}).items():
                yield f"{layer}.{name}.weight", draw(*shape)
                yield f"{layer}.{name}.bias", draw(shape[0])
            norm_names += [f"{layer}.layer_norm1", f"{layer}.layer_norm2"]
        for name in norm_names:
            yield f"{name}.weight", draw(width, around=1.0)
            yield f"{name}.bias", draw(width)
