"""Tiny jina-clip checkpoints in their published layout, and their arithmetic written out in plain torch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, normalize, silu

from tests.tiny import BERT_TOKENS, ENCODER, ROBERTA_TOKENS, save_tokenizer

MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
SIZE, HEADS, LAYERS, INNER = 32, 4, 2, 48
VOCABULARY = ENCODER["vocab_size"]
IMPLEMENTATION = "jinaai/jina-clip-implementation--"
# hf_model_config_kwargs replaces values of the text encoder's own config.json
TINY_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": SIZE,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "use_flash_attn": False,
}
TASK = "retrieval.query"
INSTRUCTION = "query: "
ALPHA, RANK = 4, 2  # published: 4 and 4, which hides the scaling
LORA = {
    "load_trained_adapters": False,
    "lora_adaptations": [TASK],
    "lora_alpha": ALPHA,
    "lora_rank": RANK,
    "lora_dropout_p": 0.0,
    "lora_main_params_trainable": False,
    "task_instructions": {TASK: INSTRUCTION},
}
TEXT_V1 = {
    "embed_dim": SIZE,
    "hf_model_name_or_path": "jinaai/jina-bert-flash-implementation",
    "hf_model_config_kwargs": TINY_TEXT,
    "pooler_type": "mean_pooler",
    "proj_bias": False,
    "proj_type": None,
}
TEXT_V2 = {
    "default_instruction_task": None,
    "default_lora_task": TASK,
    "embed_dim": SIZE,
    "hf_model_config_kwargs": TINY_TEXT | LORA,
    "hf_model_name_or_path": "jinaai/jina-embeddings-v3",
    "pooler_type": None,
    "proj_bias": False,
    "proj_type": None,
}
VISION = {
    "embed_dim": SIZE,
    "fused_layer_norm": False,
    "head_width": 8,
    "layers": LAYERS,
    "ls_init_value": None,
    "mlp_ratio": 2.6667,
    "naive_swiglu": True,
    "patch_dropout": 0.1,
    "post_norm": False,
    "proj_type": None,
    "qkv_bias": True,
    "rope_embeddings": True,
    "subln": True,
    "width": SIZE,
    "x_attention": False,
}
VISION_V1 = VISION | {"image_size": 28, "patch_size": 4, "intp_freq": False, "pt_hw_seq_len": 7}
# as published, the side is no multiple of the patch, and positions are scaled to the grid of the pretraining
VISION_V2 = VISION | {"image_size": 31, "patch_size": 4, "intp_freq": True, "pt_hw_seq_len": 4}


def make_config(version: int) -> dict[str, Any]:
    return {
        "add_projections": False,
        "architectures": ["JinaCLIPModel"],
        "auto_map": {
            "AutoConfig": f"{IMPLEMENTATION}configuration_clip.JinaCLIPConfig",
            "AutoModel": f"{IMPLEMENTATION}modeling_clip.JinaCLIPModel",
        },
        "logit_scale_init_value": 2.6592,
        "model_type": "jina_clip",
        "projection_dim": SIZE,
        "text_config": TEXT_V1 if version == 1 else TEXT_V2,
        "torch_dtype": "float32",
        "vision_config": VISION_V1 if version == 1 else VISION_V2,
        **({} if version == 1 else {"matryoshka_dimensions": [8, 16, SIZE], "truncate_dim": None}),
    }


def save_jina_clip(folder: Path, version: int, **changes: Any) -> None:
    config = make_config(version) | changes
    processor = {
        "fill_color": 0,
        "image_processor_type": "JinaCLIPImageProcessor",
        "interpolation": "bicubic",
        "mean": MEAN,
        "resize_mode": "shortest",
        "size": config["vision_config"]["image_size"],
        "std": STD,
    }
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "custom_st.Transformer"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    for name, values in (("config", config), ("preprocessor_config", processor), ("modules", modules)):
        (folder / f"{name}.json").write_text(json.dumps(values))
    save_tokenizer(folder, BERT_TOKENS if version == 1 else ROBERTA_TOKENS, max_length=8192)
    random = torch.Generator().manual_seed(version)
    shapes = text_shapes(version) | vision_shapes(config["vision_config"]) | {"logit_scale": ()}
    weights = {name: torch.randn(shape, generator=random) * 0.2 for name, shape in shapes.items()}
    for name in weights:
        if name.endswith(".weight") and weights[name].dim() == 1:  # of a norm
            weights[name] += 1
    save_file(weights, folder / "model.safetensors")


def text_shapes(version: int) -> dict[str, tuple[int, ...]]:
    prefix = "text_model.transformer." if version == 1 else "text_model.transformer.roberta."
    tables = {"word_embeddings": VOCABULARY, "token_type_embeddings": 2 if version == 1 else 1}
    matrices = {f"embeddings.{name}": (rows, SIZE) for name, rows in tables.items()}
    shapes: dict[str, tuple[int, ...]] = norm_shapes(f"{prefix}emb_ln", SIZE)
    for layer in range(LAYERS):
        name = f"encoder.layers.{layer}"
        up, down = ("mlp.gated_layers", "mlp.wo") if version == 1 else ("mlp.fc1", "mlp.fc2")
        rows = 2 * INNER if version == 1 else INNER
        linears = {"mixer.Wqkv": (3 * SIZE, SIZE), "mixer.out_proj": (SIZE, SIZE)}
        linears |= {up: (rows, SIZE), down: (SIZE, INNER)}
        matrices |= {f"{name}.{part}": shape for part, shape in linears.items()}
        shapes |= {f"{prefix}{name}.{part}.bias": shape[:1] for part, shape in linears.items() if "gated" not in part}
        shapes |= norm_shapes(f"{prefix}{name}.norm1", SIZE) | norm_shapes(f"{prefix}{name}.norm2", SIZE)
    if version == 1:
        return shapes | {f"{prefix}{name}.weight": shape for name, shape in matrices.items()}
    for name, (rows, columns) in matrices.items():
        stored = f"{prefix}{name}.parametrizations.weight"
        pair = ((rows, RANK), (RANK, columns)) if "embeddings" in name else ((RANK, columns), (rows, RANK))
        shapes |= {f"{stored}.original": (rows, columns)}
        shapes |= {f"{stored}.0.lora_{letter}": (1, *shape) for letter, shape in zip("AB", pair, strict=True)}
    return shapes


def vision_shapes(vision: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    patch, inner = vision["patch_size"], int(SIZE * vision["mlp_ratio"])
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, SIZE),
        "pos_embed": (1, (vision["image_size"] // patch) ** 2 + 1, SIZE),
        "patch_embed.proj.weight": (SIZE, 3, patch, patch),
        "patch_embed.proj.bias": (SIZE,),
        **norm_shapes("norm", SIZE),
    }
    for layer in range(LAYERS):
        block = f"blocks.{layer}"
        shapes |= {f"{block}.attn.{part}_proj.weight": (SIZE, SIZE) for part in "qkv"}
        shapes |= {f"{block}.attn.{part}_bias": (SIZE,) for part in "qv"}
        shapes |= {f"{block}.attn.proj.weight": (SIZE, SIZE), f"{block}.attn.proj.bias": (SIZE,)}
        for name, (rows, columns) in {"w1": (inner, SIZE), "w2": (inner, SIZE), "w3": (SIZE, inner)}.items():
            shapes |= {f"{block}.mlp.{name}.weight": (rows, columns), f"{block}.mlp.{name}.bias": (rows,)}
        for name, size in (("norm1", SIZE), ("norm2", SIZE), ("attn.inner_attn_ln", SIZE), ("mlp.ffn_ln", inner)):
            shapes |= norm_shapes(f"{block}.{name}", size)
    return {f"vision_model.{name}": shape for name, shape in shapes.items()}


def norm_shapes(name: str, size: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


class PlainModel:
    """The published arithmetic for one text or image at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.weights = load_file(folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text())
        self.vision = config["vision_config"]
        self.is_v1 = "bert" in config["text_config"]["hf_model_name_or_path"]
        self.text_eps = 1e-12 if self.is_v1 else 1e-5
        if not self.is_v1:
            self._merge_adapter()

    def vector(self, given: str | Image.Image) -> Tensor:
        """Return what encode_text or encode_image returns: normalized by default."""
        return normalize(self.text(given).mean(0) if isinstance(given, str) else self.image(given)[0], dim=-1)

    def text(self, text: str) -> Tensor:
        """Return the hidden states of a text: [tokens, size]."""
        ids = Tokenizer.from_file(str(self.folder / "tokenizer.json")).encode(text).ids
        prefix = "text_model.transformer." if self.is_v1 else "text_model.transformer.roberta."
        words, types = (self.weights[f"{prefix}embeddings.{name}_embeddings.weight"] for name in ("word", "token_type"))
        x = self._norm(words[ids] + types[0], f"{prefix}emb_ln", self.text_eps)
        for layer in range(LAYERS):
            name = f"{prefix}encoder.layers.{layer}"
            query, key, value = self._linear(x, f"{name}.mixer.Wqkv").chunk(3, dim=-1)
            mixed = alibi_attention(query, key, value) if self.is_v1 else rotary_attention(query, key, value)
            x = self._norm(x + self._linear(mixed, f"{name}.mixer.out_proj"), f"{name}.norm1", self.text_eps)
            if self.is_v1:
                gate, up = linear(x, self.weights[f"{name}.mlp.gated_layers.weight"]).chunk(2, dim=-1)
                hidden = self._linear(gelu(gate) * up, f"{name}.mlp.wo")
            else:
                hidden = self._linear(gelu(self._linear(x, f"{name}.mlp.fc1")), f"{name}.mlp.fc2")
            x = self._norm(x + hidden, f"{name}.norm2", self.text_eps)
        return x

    def image(self, image: Image.Image) -> Tensor:
        """Return the normed states of an image, those of the CLS token first: [1 + patches, size]."""
        name, patch, side = "vision_model", self.vision["patch_size"], self.vision["image_size"]
        pixels = preprocess(image, side)
        kernel, bias = (self.weights[f"{name}.patch_embed.proj.{kind}"] for kind in ("weight", "bias"))
        projected = torch.nn.functional.conv2d(pixels[None], kernel, bias, stride=patch)[0].flatten(1).T
        x = torch.cat((self.weights[f"{name}.cls_token"][0], projected)) + self.weights[f"{name}.pos_embed"][0]
        for layer in range(LAYERS):
            block = f"{name}.blocks.{layer}"
            x = x + self._image_attention(self._norm(x, f"{block}.norm1"), f"{block}.attn")
            normed = self._norm(x, f"{block}.norm2")
            hidden = silu(self._linear(normed, f"{block}.mlp.w1")) * self._linear(normed, f"{block}.mlp.w2")
            x = x + self._linear(self._norm(hidden, f"{block}.mlp.ffn_ln"), f"{block}.mlp.w3")
        return self._norm(x, f"{name}.norm")

    def _image_attention(self, x: Tensor, name: str) -> Tensor:
        query = linear(x, self.weights[f"{name}.q_proj.weight"], self.weights[f"{name}.q_bias"])
        key = linear(x, self.weights[f"{name}.k_proj.weight"])
        value = linear(x, self.weights[f"{name}.v_proj.weight"], self.weights[f"{name}.v_bias"])
        query, key = (torch.cat((part[:1], self._rotate(part[1:]))) for part in (query, key))  # not the CLS token
        return self._linear(self._norm(attend(query, key, value), f"{name}.inner_attn_ln"), f"{name}.proj")

    def _rotate(self, x: Tensor) -> Tensor:
        """Rotate pairs of neighbours; the first half of a head by the row of the patch, the second by its column."""
        grid, trained = self.vision["image_size"] // self.vision["patch_size"], self.vision["pt_hw_seq_len"]
        places = torch.arange(grid) / grid * trained if self.vision["intp_freq"] else torch.arange(trained)
        half = self.vision["head_width"] // 2
        bands = 10000.0 ** -(torch.arange(0, half, 2) / half)
        angles = (places[:, None] * bands).repeat_interleave(2, dim=-1)  # [grid, half]
        rows = angles[:, None].expand(grid, grid, half)
        columns = angles[None].expand(grid, grid, half)
        both = torch.cat((rows, columns), dim=-1).reshape(grid * grid, 1, 2 * half)
        heads = x.unflatten(-1, (HEADS, -1))
        swapped = torch.stack((-heads[..., 1::2], heads[..., 0::2]), dim=-1).flatten(-2)
        return (heads * both.cos() + swapped * both.sin()).flatten(1)

    def _merge_adapter(self) -> None:
        """Replace each parametrized weight by original + adapter * alpha / rank."""
        for name in [name for name in self.weights if name.endswith(".original")]:
            stored = name.removesuffix(".original")
            first, second = (self.weights[f"{stored}.0.lora_{letter}"][0] for letter in "AB")
            change = first @ second if "embeddings" in name else second @ first
            self.weights[stored.replace("parametrizations.weight", "weight")] = (
                self.weights[name] + change * ALPHA / RANK
            )

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _norm(self, x: Tensor, name: str, eps: float = 1e-6) -> Tensor:
        return layer_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], eps)


def preprocess(image: Image.Image, side: int) -> Tensor:
    """Resize the short edge and crop the middle as torchvision's Resize and CenterCrop do: [3, side, side]."""
    short, long = sorted(image.size)
    longest = int(side * long / short)
    image = image.resize((side, longest) if image.width <= image.height else (longest, side), Image.Resampling.BICUBIC)
    left, top = round((image.width - side) / 2), round((image.height - side) / 2)
    pixels = np.asarray(image.crop((left, top, left + side, top + side)), dtype=np.float32) / 255
    return torch.from_numpy((pixels - np.float32(MEAN)) / np.float32(STD)).permute(2, 0, 1)


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(0, 1) for part in (query, key, value))
    weights = (query @ key.mT / math.sqrt(query.shape[-1]) + bias).softmax(dim=-1)
    return (weights @ value).transpose(0, 1).flatten(1)


def alibi_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend with a penalty by distance in both directions; its slopes are powers of 2 ** (-8 / heads)."""
    places = torch.arange(len(query))
    slopes = torch.tensor([2.0 ** (-8 / HEADS * (head + 1)) for head in range(HEADS)])
    return attend(query, key, value, -slopes[:, None, None] * (places[:, None] - places).abs())


def rotary_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return attend(rotate_halves(query), rotate_halves(key), value)


def rotate_halves(x: Tensor) -> Tensor:
    """Rotate pairs of dimensions half a head apart; the base is 20000."""
    heads = x.unflatten(-1, (HEADS, -1))
    half = heads.shape[-1] // 2
    angles = (torch.arange(len(x))[:, None] * 20000.0 ** -(torch.arange(half) / half))[:, None]
    first, second = heads[..., :half], heads[..., half:]
    rotated = (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin())
    return torch.cat(rotated, dim=-1).flatten(1)
