"""A tiny nomic-embed-vision checkpoint in its published layout, and its arithmetic written out in plain torch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import layer_norm, linear, normalize, silu
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

SIZE, HEADS, LAYERS, INNER, SIDE, PATCH = 48, 3, 2, 256, 28, 4  # the inner size is a multiple of 256, as published
GRID = SIDE // PATCH
# config.json as published, with tiny sizes
CONFIG: dict[str, Any] = {
    "activation_function": "swiglu",
    "architectures": ["NomicVisionModel"],
    "attn_pdrop": 0.0,
    "auto_map": {
        "AutoConfig": "nomic-ai/nomic-bert-2048--configuration_hf_nomic_bert.NomicBertConfig",
        "AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicVisionModel",
    },
    "bos_token_id": None,
    "causal": False,
    "dense_seq_output": True,
    "drop_path_rate": 0.0,
    "embd_pdrop": 0.0,
    "eos_token_id": None,
    "eva_qkv_bias": False,
    "fused_bias_fc": True,
    "fused_dropout_add_ln": True,
    "global_pool": None,
    "hidden_features_scaling_factor": 1.0,
    "img_size": SIDE,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-06,
    "layer_scale": False,
    "layer_scale_init": 1.0,
    "learned_pos_embedding": False,
    "mask_token": False,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": True,
    "mlp_fc2_bias": True,
    "model_type": "nomic_bert",
    "n_embd": SIZE,
    "n_head": HEADS,
    "n_inner": 200.0,  # a float, and rounded up
    "n_layer": LAYERS,
    "n_positions": 0,
    "no_cls_token": False,
    "no_embed_class": False,
    "no_last_ln": True,
    "norm_mlp": True,
    "num_channels": 3,
    "pad_vocab_size_multiple": 1,
    "parallel_block": False,
    "parallel_block_tied_norm": False,
    "patch_dropout": 0,
    "patch_embed_bias": True,
    "patch_size": PATCH,
    "prenorm": True,
    "prepre_layernom": False,
    "qkv_proj_bias": True,
    "ref_feat_shape": [GRID, GRID],
    "register_tokens": 0,
    "resid_pdrop": 0.0,
    "rotary_emb_base": 10000,
    "rotary_emb_fraction": 0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "torch_dtype": "float32",
    "use_rotary_pos_emb": True,
    "vocab_size": 0,
}
PROCESSOR = CLIPImageProcessorPil(size={"height": SIDE, "width": SIDE}, crop_size={"height": SIDE, "width": SIDE})


def save_nomic_vision(folder: Path, **changes: Any) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    PROCESSOR.save_pretrained(folder)
    random = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, generator=random) * 0.2 for name, shape in weight_shapes().items()}
    norms = {name: 1 + weight for name, weight in weights.items() if "norm" in name and name.endswith(".weight")}
    save_file(weights | norms, folder / "model.safetensors")


def weight_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.cls_token": (1, 1, SIZE),
        "embeddings.pos_embed": (1, GRID**2 + 1, SIZE),
        **linear_shapes("embeddings.proj", 3 * PATCH**2, SIZE),
        "selector.attn.latent": (1, 1, SIZE),
        **linear_shapes("selector.attn.Wq", SIZE, SIZE),
        **linear_shapes("selector.attn.Wkv", SIZE, 2 * SIZE),
        **linear_shapes("selector.attn.out_proj", SIZE, SIZE),
        "selector.norm1.weight": (SIZE,),
        "selector.norm1.bias": (SIZE,),
        **mlp_shapes("selector.mlp"),
    }
    for layer in range(LAYERS):
        prefix = f"layers.{layer}"
        shapes |= linear_shapes(f"{prefix}.attn.Wqkv", SIZE, 3 * SIZE)
        shapes |= linear_shapes(f"{prefix}.attn.out_proj", SIZE, SIZE)
        shapes |= mlp_shapes(f"{prefix}.mlp")
        for norm, size in (("norm1", SIZE), ("norm2", SIZE), ("mlp.norm", INNER)):
            shapes |= {f"{prefix}.{norm}.weight": (size,), f"{prefix}.{norm}.bias": (size,)}
    return shapes


def linear_shapes(name: str, size: int, out: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, size), f"{name}.bias": (out,)}


def mlp_shapes(name: str) -> dict[str, tuple[int, ...]]:
    up = linear_shapes(f"{name}.fc11", SIZE, INNER) | linear_shapes(f"{name}.fc12", SIZE, INNER)
    return up | linear_shapes(f"{name}.fc2", INNER, SIZE)


class PlainModel:
    """The published arithmetic for one image at a time."""

    def __init__(self, folder: Path) -> None:
        self.weights = load_file(folder / "model.safetensors")
        self.reference = json.loads((folder / "config.json").read_text())["ref_feat_shape"][0]

    def states(self, image: Image.Image) -> Tensor:
        """Return last_hidden_state: [1 + patches, size]."""
        pixels = PROCESSOR([image], return_tensors="pt")["pixel_values"][0]
        x = self._embed(pixels)
        for layer in range(LAYERS):
            x = x + self._attention(self._norm(x, f"layers.{layer}.norm1"), f"layers.{layer}.attn")
            x = x + self._mlp(self._norm(x, f"layers.{layer}.norm2"), f"layers.{layer}.mlp", normed=True)
        query = self._linear(self.weights["selector.attn.latent"][0], "selector.attn.Wq")
        key, value = self._linear(x, "selector.attn.Wkv").chunk(2, dim=-1)
        pooled = self._linear(attend(query, key, value), "selector.attn.out_proj")
        return x + self._mlp(self._norm(pooled, "selector.norm1"), "selector.mlp", normed=False)

    def vector(self, image: Image.Image) -> Tensor:
        """Return the embedding of the model card: the first token, normalized."""
        return normalize(self.states(image)[0], dim=-1)

    def _embed(self, pixels: Tensor) -> Tensor:
        patches = [
            pixels[:, row : row + PATCH, column : column + PATCH].flatten()
            for row in range(0, SIDE, PATCH)
            for column in range(0, SIDE, PATCH)
        ]
        projected = self._linear(torch.stack(patches), "embeddings.proj")
        rows = torch.cat((self.weights["embeddings.cls_token"][0], projected))
        return rows + self.weights["embeddings.pos_embed"][0]

    def _attention(self, x: Tensor, name: str) -> Tensor:
        query, key, value = self._linear(x, f"{name}.Wqkv").chunk(3, dim=-1)
        rotated = [torch.cat((part[:1], self._rotate(part[1:]))) for part in (query, key)]  # not the CLS token
        return self._linear(attend(*rotated, value), f"{name}.out_proj")

    def _rotate(self, x: Tensor) -> Tensor:
        """Rotate pairs of neighbours; the first half of a head by the row of the patch, the second by its column."""
        dim = SIZE // HEADS
        bands = [10000.0 ** -(i / (dim // 4)) for i in range(dim // 4)]
        rotated = x.clone()
        for index in range(GRID**2):
            places = (index // GRID, index % GRID)
            for head in range(HEADS):
                for pair in range(dim // 2):
                    angle = places[pair // len(bands)] * self.reference / GRID * bands[pair % len(bands)]
                    first = head * dim + 2 * pair
                    a, b = x[index, first], x[index, first + 1]
                    rotated[index, first] = a * math.cos(angle) - b * math.sin(angle)
                    rotated[index, first + 1] = b * math.cos(angle) + a * math.sin(angle)
        return rotated

    def _mlp(self, x: Tensor, name: str, *, normed: bool) -> Tensor:
        hidden = self._linear(x, f"{name}.fc11") * silu(self._linear(x, f"{name}.fc12"))
        return self._linear(self._norm(hidden, f"{name}.norm", 1e-5) if normed else hidden, f"{name}.fc2")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _norm(self, x: Tensor, name: str, eps: float = 1e-6) -> Tensor:
        return layer_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], eps)


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(0, 1) for part in (query, key, value))
    weights = (query @ key.mT / math.sqrt(SIZE // HEADS)).softmax(dim=-1)
    return (weights @ value).transpose(0, 1).flatten(1)
