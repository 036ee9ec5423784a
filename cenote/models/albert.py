"""ALBERT: BERT with small embeddings and layers that share their weights."""

from __future__ import annotations

from dataclasses import replace

from cenote.models.architecture import Architecture, HFConfig, make_dense_head
from cenote.models.bert import bert, make_masked_head
from cenote.models.weight_table import WeightTable


def albert(config: HFConfig) -> Architecture:
    base, size = bert(config), config.get("embedding_size", 128)
    activation = config.get("hidden_act", "gelu_new")
    return replace(
        base,
        backbone=replace(
            base.backbone,
            num_layers=config.num_hidden_layers * config.get("inner_group_num", 1),
            embedding_size=size,
            activation=activation,
        ),
        weights=_weights(config),
        prefixes=("albert.", "model.", ""),
        unused_weights=("pooler.*", "classifier.*", "predictions.*", "sop_classifier.*"),
        sequence_head=make_dense_head("pooler", "classifier"),
        masked_head=make_masked_head(
            "predictions.dense",
            "predictions.LayerNorm",
            "predictions.decoder",
            "predictions.bias",
            activation=activation,
            eps=base.backbone.norm_eps,
            size=size,
        ),
    )


def _weights(config: HFConfig) -> WeightTable:
    """Return the weight table; layers of one group share their weights, so they have the same source names."""
    weights: dict[str, str | list[str]] = {
        "embed.tokens": "embeddings.word_embeddings",
        "embed.positions": "embeddings.position_embeddings",
        "embed.token_types": "embeddings.token_type_embeddings",
        "embed.norm": "embeddings.LayerNorm",
        "embed.projection": "encoder.embedding_hidden_mapping_in",
    }
    inner = config.get("inner_group_num", 1)
    layers_per_group = config.num_hidden_layers / config.get("num_hidden_groups", 1)
    for layer in range(config.num_hidden_layers * inner):
        group = int(layer // inner / layers_per_group)
        stored = f"encoder.albert_layer_groups.{group}.albert_layers.{layer % inner}"
        weights |= {
            f"layers.{layer}.mixer.qkv": [f"{stored}.attention.{x}" for x in ("query", "key", "value")],
            f"layers.{layer}.mixer.out": f"{stored}.attention.dense",
            f"layers.{layer}.mixer_norm": f"{stored}.attention.LayerNorm",
            f"layers.{layer}.mlp.up": f"{stored}.ffn",
            f"layers.{layer}.mlp.down": f"{stored}.ffn_output",
            f"layers.{layer}.mlp_norm": f"{stored}.full_layer_layer_norm",
        }
    return weights
