"""MPNet: RoBERTa without token types, with a learned relative attention bias."""

from __future__ import annotations

from dataclasses import replace

from cenote.layers.spec import RelativeBiasSpec
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.bert import roberta


def mpnet(config: HFConfig) -> Architecture:
    base = roberta(HFConfig({**config.values, "type_vocab_size": 0}, config.source))
    return replace(
        base,
        backbone=replace(
            base.backbone,
            position_offset=2,  # whatever the padding id is
            relative_bias=RelativeBiasSpec(
                num_buckets=config.get("relative_attention_num_buckets", 32), max_distance=128
            ),
        ),
        weights={
            "embed.tokens": "embeddings.word_embeddings",
            "embed.positions": "embeddings.position_embeddings",
            "embed.norm": "embeddings.LayerNorm",
            "bias": "encoder.relative_attention_bias",
            "layers.*.mixer.qkv": [f"encoder.layer.*.attention.attn.{x}" for x in "qkv"],
            "layers.*.mixer.out": "encoder.layer.*.attention.attn.o",
            "layers.*.mixer_norm": "encoder.layer.*.attention.LayerNorm",
            "layers.*.mlp.up": "encoder.layer.*.intermediate.dense",
            "layers.*.mlp.down": "encoder.layer.*.output.dense",
            "layers.*.mlp_norm": "encoder.layer.*.output.LayerNorm",
        },
        prefixes=("mpnet.", "model.", ""),
    )
