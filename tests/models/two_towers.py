"""Tiny CLIP and SigLIP checkpoints saved by Transformers, and its outputs for single texts and images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import normalize

from cenote import LLM
from tests.api.image_helpers import image_part, make_message, text_part
from tests.tiny import ENCODER, TEXTS, randomize, save_tokenizer

# the last one is EOS; its id must not be 2, which Transformers treats specially
TOKENS = {"unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>", "cls_token": "<s>", "sep_token": "</s>"}
TEXT = ENCODER | {"max_position_embeddings": 24, "pad_token_id": 1, "bos_token_id": 3, "eos_token_id": 4}
VISION: dict[str, Any] = {
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "patch_size": 4,
}


def make_image(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return large spots of colour; resized noise would make all images equal."""
    spots = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(spots).resize((width, height), Image.Resampling.BICUBIC)


# portrait, model size, landscape, tiny
IMAGES = [make_image(30, 70, 1), make_image(28, 28, 2), make_image(95, 41, 3), make_image(5, 3, 4)]
# texts and images alternating, one image twice
MIXED: list[str | Image.Image] = [
    TEXTS[0],
    IMAGES[0],
    IMAGES[2],
    *TEXTS[1:4],
    IMAGES[1],
    IMAGES[0],
    IMAGES[3],
]


@dataclass(frozen=True)
class Reference:
    folder: Path
    model: Any
    processor: Any

    def vector(self, given: str | Image.Image, pad_to: int = 0) -> Tensor:
        with torch.inference_mode():
            if isinstance(given, str):
                ids = self.ids(given)
                ids += [1] * (pad_to - len(ids))
                found = self.model.get_text_features(input_ids=torch.tensor([ids]))
            else:
                found = self.model.get_image_features(**self.processor([given], return_tensors="pt"))
        return normalize(found.pooler_output[0], dim=-1)

    def ids(self, text: str) -> list[int]:
        return list(Tokenizer.from_file(str(self.folder / "tokenizer.json")).encode(text).ids)


def save(folder: Path, config: Any, model_class: Any, processor: Any) -> Reference:
    model = model_class(config).eval().requires_grad_(False)
    randomize(model, std=0.2)
    model.save_pretrained(folder)
    save_tokenizer(folder, TOKENS, max_length=24, two_types=False)
    processor.save_pretrained(folder)
    return Reference(folder, model, processor)


def prompt(given: str | Image.Image) -> Any:
    return given if isinstance(given, str) else {"prompt": "", "multi_modal_data": {"image": given}}


def vectors(llm: LLM, inputs: Sequence[str | Image.Image], **options: Any) -> Tensor:
    found = llm.embed([prompt(each) for each in inputs], use_tqdm=False, **options)
    return torch.tensor([output.outputs.embedding for output in found])


def assert_same(actual: Tensor, expected: Sequence[Tensor]) -> None:
    torch.testing.assert_close(actual, torch.stack(list(expected)), rtol=0, atol=1e-4)


def image_message(image: Image.Image, *texts: str) -> list[dict[str, Any]]:
    return [make_message(*map(text_part, texts), image_part(image))]
