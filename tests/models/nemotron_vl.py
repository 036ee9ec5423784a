"""Tiny checkpoints of Llama Nemotron VL."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaModel, SiglipVisionConfig, SiglipVisionModel

from cenote.loading.checkpoint import find_checkpoint
from tests.tiny import DECODER, change_config, randomize, save_tokenizer

TOKENS = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>"}
TOKENS |= {"first": "<img>", "context": "<IMG_CONTEXT>", "last": "</img>"}

SIDE, PATCH, MOST = 32, 8, 4

VISION: dict[str, Any] = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION |= {"image_size": SIDE, "patch_size": PATCH, "model_type": "siglip_vision_model"}

TEXT = DECODER | {"max_position_embeddings": 512, "pooling": "avg", "model_type": "llama_bidirec"}

LLAMA_TEMPLATE = "{% for message in messages %}<unk>{{ message.content }}{% endfor %}"


class Reference:
    def __init__(self, folder: Path) -> None:
        self.folder, self.checkpoint = folder, find_checkpoint(str(folder))
        self.vision = SiglipVisionModel(SiglipVisionConfig(**VISION)).eval()
        self.text = LlamaModel(LlamaConfig(**TEXT, attn_implementation="eager")).eval()
        self.mlp = nn.Sequential(nn.LayerNorm(96), nn.Linear(96, 32), nn.GELU(), nn.Linear(32, 32))
        self.score = nn.Linear(32, 1, bias=False)
        for seed, module in enumerate((self.vision, self.text, self.mlp, self.score)):
            randomize(module, seed)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def pooled(self, text: str, images: Sequence[Image.Image] = (), most: int = MOST) -> Tensor:
        """Return the mean over all tokens of a text with <image> placeholders."""
        rows = []
        for image in images:
            pixels = torch.stack([tile_pixels(tile) for tile in tiles(image, most)])
            states = self.vision(pixel_values=pixels).last_hidden_state  # [tiles, 16, 24]
            rows += [self.mlp(shuffled(each)) for each in states]
            marks = "<IMG_CONTEXT>" * 4 * len(pixels)
            text = text.replace("<image>", f"<img>{marks}</img>", 1)
        ids = torch.tensor(self.tokenizer.encode(text).ids)
        embeds = self.text.embed_tokens(ids)
        if rows:
            embeds[ids == self.tokenizer.token_to_id("<IMG_CONTEXT>")] = torch.cat(rows)
        everything = torch.zeros(1, 1, len(ids), len(ids))
        return self.text(inputs_embeds=embeds[None], attention_mask=everything).last_hidden_state[0].mean(0)

    def vector(self, text: str, images: Sequence[Image.Image] = (), most: int = MOST) -> list[float]:
        with torch.no_grad():
            return F.normalize(self.pooled(text, images, most), dim=0).tolist()  # type: ignore[no-any-return]

    def judged(self, text: str, images: Sequence[Image.Image] = ()) -> float:
        with torch.no_grad():
            return float(self.score(self.pooled(text, images)).sigmoid())


def shuffled(states: Tensor) -> Tensor:
    """Merge squares of four patches into one row."""
    square = states.view(4, 4, 24)
    rows = [square[2 * y : 2 * y + 2, 2 * x : 2 * x + 2].reshape(-1) for y in range(2) for x in range(2)]
    return torch.stack(rows)


def tiles(image: Image.Image, most: int) -> list[Image.Image]:
    layouts = {(x, y) for n in range(1, most + 1) for x in range(1, n + 1) for y in range(1, n + 1) if x * y <= most}
    ratio, best = image.width / image.height, (0.0, (1, 1))
    for columns, rows in sorted(layouts, key=lambda each: each[0] * each[1]):
        share = min(columns * rows * SIDE**2 / (image.width * image.height), 0.6)
        fit = share * min(columns / rows / ratio, ratio / (columns / rows))
        best = (fit, (columns, rows)) if fit > best[0] else best
    columns, rows = best[1]
    whole = np.asarray(image.resize((columns * SIDE, rows * SIDE)))
    cut = [each for band in np.split(whole, rows) for each in np.split(band, columns, axis=1)]
    small = [] if len(cut) == 1 else [np.asarray(image.resize((SIDE, SIDE)))]
    return [Image.fromarray(each) for each in [*cut, *small]]


def tile_pixels(tile: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(tile)).permute(2, 0, 1) / 255 * 2 - 1


def save_embedder(folder: Path) -> Reference:
    save_tokenizer(folder, TOKENS, max_length=512, two_types=False)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": LLAMA_TEMPLATE}))
    config = {
        "architectures": ["LlamaNemotronVLModel"],
        "model_type": "llama_nemotron_vl",
        "vision_config": VISION,
        "llm_config": TEXT,
        "force_image_size": SIDE,
        "downsample_ratio": 0.5,
        "select_layer": -1,
        "ps_version": "v2",
        "max_dynamic_patch": 1,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "processor_config.json").write_text(json.dumps({"max_input_tiles": MOST, "use_thumbnail": True}))
    made = Reference(folder)
    save_file(weights(made), folder / "model.safetensors")
    return made


def save_reranker(reference: Reference, folder: Path) -> None:
    """Save the reranker with the backbone of the embedder, under newer names."""
    if folder != reference.folder:
        shutil.copytree(reference.folder, folder, dirs_exist_ok=True)
    stored = {
        f"model.{name}".replace("vision_model." * 2, "vision_model."): t for name, t in weights(reference).items()
    }
    save_file({**stored, "score.weight": reference.score.weight.data}, folder / "model.safetensors")
    change_config(folder, architectures=["LlamaNemotronVLForSequenceClassification"], id2label={"0": "LABEL_0"})


def weights(reference: Reference) -> dict[str, Tensor]:
    parts = {"vision_model.vision_model.": reference.vision, "language_model.": reference.text, "mlp1.": reference.mlp}
    stored = {before + name: tensor for before, part in parts.items() for name, tensor in part.state_dict().items()}
    return {name.replace("vision_model." * 3, "vision_model." * 2): tensor for name, tensor in stored.items()}
