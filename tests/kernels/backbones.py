"""Small backbones with random weights, which the kernels compute at every level."""

from __future__ import annotations

import torch

from cenote.layers.backbone import Backbone
from cenote.layers.spec import BackboneSpec, RopeSpec
from cenote.packed_batch import PackedBatch, pack_sequences
from tests.tiny import randomize

SPEC = BackboneSpec(
    vocab_size=200,
    hidden_size=128,
    intermediate_size=192,
    num_layers=2,
    num_heads=4,
    num_learned_positions=512,
    num_token_types=2,
    has_embed_norm=True,
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
    norm_order="post",
    has_final_norm=False,
)

# as in ModernBERT and as in Qwen3
LOCAL_ENCODER = {
    "norm_order": "pre",
    "has_first_norm": False,
    "has_final_norm": True,
    "rope": RopeSpec(),
    "local_rope": RopeSpec(theta=100.0),
    "is_gated_mlp": True,
    "window": 8,
    "local_layers": (True, False),
}

DECODER = {
    "norm_order": "pre",
    "norm": "rms",
    "has_final_norm": True,
    "rope": RopeSpec(rotary_dim=16),
    "is_gated_mlp": True,
    "activation": "silu",
    "causal": True,
    "num_kv_heads": 2,
    "qk_norm": "head",
    "has_embed_norm": False,
    "num_learned_positions": 0,
    "num_token_types": 0,
}

# as in Gemma 2 and 3, OLMo 2, Granite, MPNet and Jina's BERT with ALiBi
FOUR_NORMS = {
    **DECODER,
    "norm_order": "sandwich",
    "norm_offset": 1.0,
    "embed_scale": 128**0.5,
    "activation": "gelu_tanh",
    "window": 8,
    "local_layers": (True, False),
    "local_rope": RopeSpec(theta=100.0),
    "softcap": 5.0,
}

OUTPUT_NORMS = {**DECODER, "norm_order": "output", "qk_norm": "width"}

SCALED_RESIDUALS = {**DECODER, "residual_scale": 0.3, "qk_norm": None, "embed_scale": 2.0, "rope": None}


def make_backbone(spec: BackboneSpec) -> Backbone:
    backbone = Backbone(spec).requires_grad_(False)
    randomize(backbone, std=0.1)
    backbone.prepare_buffers(torch.device("cpu"), torch.float32)
    return backbone


def sequences(lengths: list[int]) -> list[list[int]]:
    tokens = torch.randint(0, 200, (sum(lengths),), generator=torch.Generator().manual_seed(1))
    return [row.tolist() for row in tokens.split(lengths)]


def batch_of(lengths: list[int], *, typed: bool = False) -> PackedBatch:
    rows = sequences(lengths)
    return pack_sequences(rows, [[int(index > 3) for index in range(len(row))] for row in rows] if typed else None)
