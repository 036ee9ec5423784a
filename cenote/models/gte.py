"""GTE's own encoder, which Alibaba calls New and Snowflake Gte: a rotary BERT with a gated MLP."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from cenote.errors import LoadError
from cenote.layers.linear import Linear
from cenote.layers.mlp import GatedMLP
from cenote.layers.spec import BackboneSpec
from cenote.models.architecture import Architecture, HFConfig, rope
from cenote.models.bert import bert, masked_head
from cenote.models.jina_v3 import ROTARY_NAMES, with_rotary
from cenote.models.weight_table import Made, WeightTable

GATED_NAMES: WeightTable = {
    **ROTARY_NAMES,
    "layers.*.mlp.up": ["layers.*.mlp.gate_proj", "layers.*.mlp.up_proj"],
    "layers.*.mlp.down": "layers.*.mlp.down_proj",
}


def gte(config: HFConfig) -> Architecture:
    for key, usual in {"layer_norm_type": "layer_norm", "logn_attention_scale": False}.items():
        if config.get(key, usual) != usual:
            raise LoadError(f"{config.source}: {key} is {config.get(key)!r}; only {usual!r} is known")
    base = with_rotary(bert(config.otherwise(type_vocab_size=1)), config, rope(config, theta=160000.0))
    heads = [
        masked_head(
            "lm_head.dense",
            f"lm_head.{norm}",
            "lm_head.decoder",
            "lm_head.decoder.bias",
            activation=base.backbone.activation,
            eps=base.backbone.norm_eps,
        )
        for norm in ("layer_norm", "norm")
    ]
    return replace(
        base,
        backbone=replace(base.backbone, gated=True),
        weights=GATED_NAMES,
        also=(
            {
                "embed.tokens": "embeddings.word_embeddings",
                "embed.token_types": "embeddings.token_type_embeddings",
                "embed.norm": "embeddings.LayerNorm",
                "layers.*.mixer.qkv": "encoder.layer.*.attention.qkv_proj",
                "layers.*.mixer.out": "encoder.layer.*.attention.o_proj",
                "layers.*.mixer_norm": "encoder.layer.*.attn_ln",
                "layers.*.mlp.up": Made(("encoder.layer.*.mlp.up_gate_proj",), gate_first),
                "layers.*.mlp.down": "encoder.layer.*.mlp.down_proj",
                "layers.*.mlp_norm": "encoder.layer.*.mlp_ln",
            },
        ),
        prefixes=("new.", "gte.", "model.", ""),
        masked_head=replace(heads[0], also=(*heads[0].also, heads[1].weights, *heads[1].also)),
        mlp=half_biased_mlp,
    )


def gate_first(stored: Tensor) -> Tensor:
    return torch.cat(stored.chunk(2)[::-1])


def half_biased_mlp(spec: BackboneSpec, layer: int) -> nn.Module:
    """A gated MLP of which only the second layer has a bias."""
    mlp = GatedMLP(spec)
    mlp.up = Linear(spec.hidden_size, 2 * spec.intermediate_size, bias=False)
    return mlp
