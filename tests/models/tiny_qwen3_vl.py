"""Tiny Qwen3-VL checkpoints with random weights, and the outputs of Transformers for texts with images.

    reference = save_tiny_qwen3_vl(tmp_path)                   # an embedder; tied=True ties the LM head
    reference, projection = save_tiny_colqwen3(tmp_path)       # token embeddings
    llm = LLM(str(tmp_path), dtype="float32")

Images become 1 to 16 tokens, whatever their size; a chat template and all files about images lie in the folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tests.tiny import QWEN_TOKENS, VOCAB_SIZE, change_config, randomize, save_tokenizer

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
TOKENS = QWEN_TOKENS | {
    "start_token": "<|im_start|>",
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
}
TEXT = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    # more rotary pairs than the sections of rows and columns
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default", "mrope_section": [4, 2, 2]}
    | {"mrope_interleaved": True},
}
VISION = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": 8,
    "out_hidden_size": 32,
    "num_position_embeddings": 25,
    "deepstack_visual_indexes": [0, 1],
}
PREPROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "size": {"shortest_edge": 16 * 16, "longest_edge": 64 * 64},
    "patch_size": 8,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
CHAT_TEMPLATE = """
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content -%}
{%- if part.type == "image" or part.type == "image_url" -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == "text" -%}
{{ part.text }}
{%- endif -%}
{%- endfor %}{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""


def save_tiny_qwen3_vl(folder: Path, *, tied: bool = False, seed: int = 0) -> Qwen3VLForConditionalGeneration:
    """Save a Qwen3-VL embedder and return the Transformers model."""
    config = {"text_config": TEXT, "vision_config": VISION, "tie_word_embeddings": tied}
    return save_model(folder, Qwen3VLForConditionalGeneration, config, seed=seed)


def save_model(
    folder: Path, model_class: type[Any], config: Mapping[str, Any], *, seed: int = 0, std: float = 0.3
) -> Any:
    """Save a model of that class (with the tower of Qwen3-VL) and all its files."""
    tokenizer = save_tokenizer(folder, TOKENS, max_length=512, two_types=False)
    ids = {
        f"{name}_id": tokenizer.token_to_id(TOKENS[name])
        for name in ("image_token", "video_token", "vision_start_token", "vision_end_token")
    }
    model = model_class(model_class.config_class(**config, **ids)).eval().requires_grad_(False)
    randomize(model, seed, std)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return model


def save_tiny_colqwen3(
    folder: Path,
    *,
    architecture: str = "ColQwen3",
    projection: str = "embedding_proj_layer",
    bias: bool = True,
    renamed: Callable[[str], str] = "vlm.{}".format,
    **changes: Any,
) -> tuple[Qwen3VLForConditionalGeneration, torch.nn.Linear]:
    """Save Qwen3-VL with a projection to size 8, by default with the names of the Tomoro checkpoints."""
    model = save_tiny_qwen3_vl(folder)
    layer = save_projection(folder, projection, bias=bias, renamed=renamed)
    change_config(folder, architectures=[architecture], model_type="colqwen3", **{"embed_dim": 8} | changes)
    return model, layer


def save_projection(
    folder: Path, name: str, *, bias: bool, renamed: Callable[[str], str], size: int = 8
) -> torch.nn.Linear:
    """Add a projection to a checkpoint and rename its weights."""
    layer = torch.nn.Linear(32, size, bias=bias).requires_grad_(False)
    randomize(layer, seed=1)
    tensors = {renamed(stored): tensor for stored, tensor in load_file(folder / "model.safetensors").items()}
    if name:
        tensors |= {f"{name}.{part}": tensor for part, tensor in layer.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    return layer


def make_image(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return smooth noise, on which another way of resizing makes a difference."""
    noise = np.random.default_rng(seed).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def states_of(model: Any, folder: Path, prompt: str, images: Sequence[Image.Image] = ()) -> Tensor:
    """Return the Transformers hidden states of a prompt with image placeholders, [tokens, hidden]."""
    token_ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(prompt).ids
    mark, seen = model.config.image_token_id, dict[str, Tensor]()
    if images:
        seen = dict(Qwen2VLImageProcessorPil(**_settings())(list(images), return_tensors="pt"))
        counts = iter(seen["image_grid_thw"].prod(dim=1).tolist())
        token_ids = [one for token in token_ids for one in [token] * (next(counts) // 4 if token == mark else 1)]
    rows = torch.tensor([token_ids])
    with torch.inference_mode():
        out = model.model(input_ids=rows, mm_token_type_ids=(rows == mark).int(), **seen)
    return out.last_hidden_state[0]  # type: ignore[no-any-return]


def _settings() -> Mapping[str, Any]:
    return {name: value for name, value in PREPROCESSOR.items() if name != "image_processor_type"} | {
        "size": dict(PREPROCESSOR["size"])  # type: ignore[call-overload]  # which the processor changes
    }


SQUARE, WIDE, TALL = make_image(40, 40), make_image(100, 30, 1), make_image(9, 50, 2)
# texts, one image, several of different sizes, shared and repeated images
INPUTS: list[tuple[str, list[Image.Image]]] = [
    ("the cat is in the city", []),
    (f"a {IMAGE} cat", [SQUARE]),
    (f"{IMAGE} two {IMAGE} three {IMAGE} how big is the old river in berlin?", [WIDE, TALL, SQUARE]),
    ("a", []),
    (IMAGE, [TALL]),
    (f"{IMAGE} and {IMAGE}", [SQUARE, SQUARE]),
]
