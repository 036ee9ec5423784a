"""Tiny Qwen2-VL and Qwen2.5-VL checkpoints saved by Transformers, and its outputs for texts with images."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor
from torch.testing import assert_close
from transformers import PreTrainedModel
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from cenote import LLM, PoolingParams
from tests.tiny import DECODER, QWEN_TOKENS, randomize, save_tokenizer

IMAGE_TOKEN = "<|image_pad|>"
PLACEHOLDER = f"<|vision_start|>{IMAGE_TOKEN}<|vision_end|>"
TOKENS = QWEN_TOKENS | {"boi": "<|vision_start|>", "image": IMAGE_TOKEN, "eoi": "<|vision_end|>"}
PATCHES = {"patch_size": 4, "temporal_patch_size": 2, "merge_size": 2, "min_pixels": 128, "max_pixels": 4096}
TEXT = DECODER | {
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1]},
}
VISION: dict[str, Any] = {"depth": 3, "num_heads": 2, "patch_size": 4}


def save_qwen_vl(folder: Path, model_class: type[PreTrainedModel], vision: dict[str, Any], **changes: Any) -> Any:
    """Save a model of that class with tokenizer and image processor; `changes` apply to the top-level config."""
    tokenizer = save_tokenizer(folder, TOKENS, max_length=512, two_types=False)
    ids = {
        "image_token_id": tokenizer.token_to_id(IMAGE_TOKEN),
        "vision_start_token_id": tokenizer.token_to_id("<|vision_start|>"),
        "vision_end_token_id": tokenizer.token_to_id("<|vision_end|>"),
        "video_token_id": 159,
    }
    config = model_class.config_class(text_config=dict(TEXT), vision_config=VISION | vision, **ids, **changes)
    made = model_class(config).eval().requires_grad_(False)
    randomize(made)
    made.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PATCHES))
    return made


def make_image(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def reference_inputs(folder: Path, text: str, images: Sequence[Image.Image] = ()) -> dict[str, Tensor]:
    """Return the arguments of the Transformers model for a text with image placeholders."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    arguments: dict[str, Tensor] = {}
    if images:
        pixels = Qwen2VLImageProcessorPil(**PATCHES)(list(images), return_tensors="pt")
        arguments = {"pixel_values": pixels["pixel_values"], "image_grid_thw": pixels["image_grid_thw"]}
        for count in (pixels["image_grid_thw"].prod(-1) // PATCHES["merge_size"] ** 2).tolist():
            text = text.replace(IMAGE_TOKEN, "<image>" * count, 1)
        text = text.replace("<image>", IMAGE_TOKEN)
    ids = torch.tensor([tokenizer.encode(text).ids])
    return {"input_ids": ids, "mm_token_type_ids": (ids == tokenizer.token_to_id(IMAGE_TOKEN)).int(), **arguments}


def expected_states(reference: Any, folder: Path, text: str, images: Sequence[Image.Image] = ()) -> Tensor:
    """[tokens, hidden]"""
    with torch.inference_mode():
        return reference(**reference_inputs(folder, text, images)).last_hidden_state[0]  # type: ignore[no-any-return]


# without images, with one before or inside the text, several, the same twice; of different sizes
FIRST, WIDE, TALL = make_image(40, 24), make_image(61, 17, seed=1), make_image(19, 75, seed=2)
INPUTS: list[tuple[str, list[Image.Image]]] = [
    ("the cat is in the city", []),
    (PLACEHOLDER, [FIRST]),
    (f"{PLACEHOLDER} a red bird", [WIDE]),
    (f"the old {PLACEHOLDER} river {PLACEHOLDER} in berlin", [TALL, make_image(64, 64, seed=3)]),
    (f"how big is it? {PLACEHOLDER}", [FIRST]),
    (f"{PLACEHOLDER}{PLACEHOLDER} two", [WIDE, WIDE]),
    ("a", []),
    (f"small {PLACEHOLDER}", [make_image(5, 3, seed=4)]),
    (f"big {PLACEHOLDER} city", [make_image(200, 170, seed=5)]),
]


def prompts() -> list[Any]:
    return [{"prompt": text, "multi_modal_data": {"image": images}} if images else text for text, images in INPUTS]


@contextmanager
def opened(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), dtype="float32", device="cpu", limit_mm_per_prompt={"image": 4}) as llm:
        yield llm


def assert_token_states_match(llm: LLM, folder: Path, reference: Any) -> None:
    """`reference`: the model without its head."""
    raw = PoolingParams(use_activation=False)
    actual = llm.encode(prompts(), pooling_task="token_embed", pooling_params=raw, use_tqdm=False)
    for (text, images), mine in zip(INPUTS, actual, strict=True):
        assert_close(mine.outputs.data, expected_states(reference, folder, text, images), atol=1e-4, rtol=0)


def assert_last_token_is_embedding(llm: LLM, folder: Path, reference: Any) -> None:
    for (text, images), mine in zip(INPUTS, llm.embed(prompts(), use_tqdm=False), strict=True):
        last = expected_states(reference, folder, text, images)[-1]
        assert_close(torch.tensor(mine.outputs.embedding), last / last.norm(), atol=1e-5, rtol=0)


# windows of two by two tokens: the images have full windows and partial ones at the edges
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "out_hidden_size": 32,
    "window_size": 16,
    "fullatt_block_indexes": [1],
}
