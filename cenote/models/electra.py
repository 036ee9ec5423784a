"""ELECTRA: BERT trained to detect replaced tokens; the small sizes have a smaller embedding size."""

from __future__ import annotations

from dataclasses import replace

from cenote.layers.spec import HeadSpec
from cenote.models.architecture import Architecture, Head, HFConfig
from cenote.models.bert import bert, make_masked_head


def electra(config: HFConfig) -> Architecture:
    base, size = bert(config.with_defaults(num_attention_heads=4)), config.get("embedding_size", 128)
    return replace(
        base,
        backbone=replace(base.backbone, embedding_size=size),
        weights={**base.weights, "embed.projection": "embeddings_project"},
        prefixes=("electra.", "model.", ""),
        unused_weights=("*position_ids", "classifier.*", "generator_*", "discriminator_predictions.*"),
        sequence_head=Head(
            spec=HeadSpec(pooling="CLS", has_dense=True, dense_activation="gelu", full_head_per_token=True),
            weights={"head.dense": "classifier.dense", "head.classifier": "classifier.out_proj"},
        ),
        masked_head=make_masked_head(
            "generator_predictions.dense",
            "generator_predictions.LayerNorm",
            "generator_lm_head",
            "generator_lm_head.bias",
            activation="gelu",
            eps=base.backbone.norm_eps,
            size=size,
        ),
    )
