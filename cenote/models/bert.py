"""BERT and RoBERTa: post-norm encoders with learned positions, and parts for models based on them."""

from __future__ import annotations

from dataclasses import replace

from cenote.layers.spec import BackboneSpec, HeadSpec, RopeSpec
from cenote.models.architecture import (
    Architecture,
    Head,
    HFConfig,
    StoredProjection,
    make_dense_head,
    make_linear_head,
)

# encoders of Transformers that are causal with `is_decoder`
DECODER_TYPES = ("bert", "roberta", "xlm-roberta", "camembert", "electra")


def bert(config: HFConfig) -> Architecture:
    activation, eps = config.get("hidden_act", "gelu"), config.get("layer_norm_eps", 1e-12)
    return Architecture(
        pooling="CLS",
        backbone=BackboneSpec(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_layers=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            num_learned_positions=config.max_position_embeddings,
            num_token_types=config.get("type_vocab_size", 2),
            has_embed_norm=True,
            causal=config.get("is_decoder", False) is True and config.get("model_type") in DECODER_TYPES,
            qkv_bias=True,
            out_bias=True,
            mlp_bias=True,
            activation=activation,
            norm_order="post",
            norm_eps=eps,
            has_final_norm=False,
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
        unused_weights=("pooler.*", "*position_ids", "cls.*", "lm_head.*", "classifier.*"),
        sequence_head=make_dense_head("pooler.dense", "classifier"),
        token_head=make_linear_head("classifier"),
        masked_head=make_masked_head(
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.decoder",
            "cls.predictions.bias",
            activation=activation,
            eps=eps,
        ),
    )


def contriever(config: HFConfig) -> Architecture:
    """Contriever and mContriever: the mean as it is, compared by dot product."""
    return replace(bert(config), pooling="MEAN", normalize=False)


def dpr(config: HFConfig) -> Architecture:
    """DPR context and question encoders: the first token as it is, or projected."""
    projection = StoredProjection(
        weights=("ctx_encoder.encode_proj",),
        alternative_weights=(("question_encoder.encode_proj",), ("encode_proj",)),
    )
    return replace(
        bert(config),
        normalize=False,
        prefixes=("ctx_encoder.bert_model.", "question_encoder.bert_model.", "bert_model.", ""),
        projection=projection if config.get("projection_dim", 0) else None,
    )


def roberta(config: HFConfig) -> Architecture:
    """RoBERTa: BERT with positions that start after the padding id; covers CamemBERT."""
    base = bert(config)
    return replace(
        base,
        backbone=replace(base.backbone, position_offset=config.get("pad_token_id", 1) + 1),
        sequence_head=make_dense_head("classifier.dense", "classifier.out_proj", full_head_per_token=True),
        masked_head=make_masked_head(
            "lm_head.dense",
            "lm_head.layer_norm",
            "lm_head.decoder",
            "lm_head.bias",
            activation="gelu",
            eps=base.backbone.norm_eps,
        ),
        defaults_to_mlm=False,
    )


def make_masked_head(
    dense: str, norm: str, decoder: str, bias: str, *, activation: str, eps: float, size: int | None = None
) -> Head:
    """Return an MLM head: dense, activation, norm, decoder; the decoder may be tied to the token embeddings."""
    tables = [
        {"head.dense": dense, "head.norm": norm, "head.classifier.weight": weight, "head.classifier.bias": decoder_bias}
        for weight in (f"{decoder}.weight", "embeddings.word_embeddings.weight")
        for decoder_bias in (f"{decoder}.bias", bias)
    ]
    spec = HeadSpec(has_dense=True, dense_activation=activation, has_norm=True, norm_eps=eps, full_head_per_token=True)
    return Head(spec=replace(spec, dense_size=size), weights=tables[0], alternative_weights=tuple(tables[1:]))


def with_rotary(base: Architecture, config: HFConfig, rope: RopeSpec) -> Architecture:
    """Return a BERT-like architecture with rotary instead of learned positions."""
    spec = replace(
        base.backbone, num_learned_positions=0, position_offset=0, rope=rope, head_dim=config.get("head_dim")
    )
    return replace(base, backbone=spec)
