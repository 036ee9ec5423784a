"""BERT and its close kin: post-norm encoders with learned positions."""

from __future__ import annotations

from dataclasses import replace

from cenote.layers.spec import BackboneSpec
from cenote.models.architecture import Architecture, HFConfig, dense_head, linear_head


def bert(config: HFConfig) -> Architecture:
    return Architecture(
        pooling="CLS",
        backbone=BackboneSpec(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_layers=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            learned_positions=config.max_position_embeddings,
            token_types=config.type_vocab_size,
            embed_norm=True,
            qkv_bias=True,
            out_bias=True,
            mlp_bias=True,
            activation=config.get("hidden_act", "gelu"),
            norm_order="post",
            norm_eps=config.get("layer_norm_eps", 1e-12),
            final_norm=False,
        ),
        weights={
            "embed.tokens": "embeddings.word_embeddings",
            "embed.positions": "embeddings.position_embeddings",
            "embed.token_types": "embeddings.token_type_embeddings",
            "embed.norm": "embeddings.LayerNorm",
            "layers.*.mixer.qkv": [f"encoder.layer.*.attention.self.{x}" for x in ("query", "key", "value")],
            "layers.*.mixer.out": "encoder.layer.*.attention.output.dense",
            "layers.*.mixer_norm": "encoder.layer.*.attention.output.LayerNorm",
            "layers.*.mlp.up": "encoder.layer.*.intermediate.dense",
            "layers.*.mlp.down": "encoder.layer.*.output.dense",
            "layers.*.mlp_norm": "encoder.layer.*.output.LayerNorm",
        },
        prefixes=("bert.", "roberta.", "model.", ""),
        unused=("pooler.*", "*position_ids", "cls.*", "lm_head.*", "classifier.*"),
        sequence_head=dense_head("pooler.dense", "classifier"),
        token_head=linear_head("classifier"),
    )


def roberta(config: HFConfig) -> Architecture:
    """BERT whose positions start after the padding id. Covers CamemBERT."""
    base = bert(config)
    return replace(
        base,
        backbone=replace(base.backbone, position_offset=config.get("pad_token_id", 1) + 1),
        sequence_head=dense_head("classifier.dense", "classifier.out_proj", whole_per_token=True),
    )


def xlm_roberta(config: HFConfig) -> Architecture:
    return roberta(config)
