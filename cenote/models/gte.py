"""GTE encoders (`New*` by Alibaba, `Gte*` by Snowflake): a rotary BERT with a gated MLP."""

from __future__ import annotations

from dataclasses import replace

from cenote.errors import LoadError
from cenote.models.architecture import Architecture, HFConfig, rope_from_config
from cenote.models.bert import bert, make_masked_head, with_rotary
from cenote.models.checkpoint_names import GATED_MLP_NAMES
from cenote.models.weight_table import DerivedWeight, swap_gate_first


def gte(config: HFConfig) -> Architecture:
    for key, usual in {"layer_norm_type": "layer_norm", "logn_attention_scale": False}.items():
        if config.get(key, usual) != usual:
            raise LoadError(f"{config.source}: {key} is {config.get(key)!r}; only {usual!r} is supported")
    base = with_rotary(bert(config.with_defaults(type_vocab_size=1)), config, rope_from_config(config, theta=160000.0))
    heads = [
        make_masked_head(
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
        backbone=replace(base.backbone, is_gated_mlp=True, mlp_bias=False, down_bias=True),
        weights=GATED_MLP_NAMES,
        alternative_weights=(
            {
                "embed.tokens": "embeddings.word_embeddings",
                "embed.token_types": "embeddings.token_type_embeddings",
                "embed.norm": "embeddings.LayerNorm",
                "layers.*.mixer.qkv": "encoder.layer.*.attention.qkv_proj",
                "layers.*.mixer.out": "encoder.layer.*.attention.o_proj",
                "layers.*.mixer_norm": "encoder.layer.*.attn_ln",
                "layers.*.mlp.up": DerivedWeight(("encoder.layer.*.mlp.up_gate_proj",), swap_gate_first),
                "layers.*.mlp.down": "encoder.layer.*.mlp.down_proj",
                "layers.*.mlp_norm": "encoder.layer.*.mlp_ln",
            },
        ),
        prefixes=("new.", "gte.", "model.", ""),
        masked_head=replace(
            heads[0],
            alternative_weights=(*heads[0].alternative_weights, heads[1].weights, *heads[1].alternative_weights),
        ),
    )
