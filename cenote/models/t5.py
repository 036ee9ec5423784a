"""T5: the encoder; pre-norm, without biases, with a relative attention bias."""

from __future__ import annotations

from cenote.layers.spec import BackboneSpec, RelativeBiasSpec
from cenote.models.architecture import Architecture, HFConfig, make_linear_head


def t5(config: HFConfig) -> Architecture:
    *gated, activation = config.get("feed_forward_proj", "relu").split("-")
    dense = "encoder.block.*.layer.1.DenseReluDense"
    weights: dict[str, str | list[str]] = {
        "embed.tokens": "shared",
        "bias": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        "layers.*.mixer.qkv": [f"encoder.block.*.layer.0.SelfAttention.{x}" for x in "qkv"],
        "layers.*.mixer.out": "encoder.block.*.layer.0.SelfAttention.o",
        "layers.*.mixer_norm": "encoder.block.*.layer.0.layer_norm",
        "layers.*.mlp.up": [f"{dense}.wi_0", f"{dense}.wi_1"] if gated else f"{dense}.wi",
        "layers.*.mlp.down": f"{dense}.wo",
        "layers.*.mlp_norm": "encoder.block.*.layer.1.layer_norm",
        "norm": "encoder.final_layer_norm",
    }
    return Architecture(
        pooling="MEAN",
        backbone=BackboneSpec(
            vocab_size=config.vocab_size,
            hidden_size=config.d_model,
            intermediate_size=config.d_ff,
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            head_dim=config.get("d_kv", 64),
            scale=1.0,  # folded into the weights
            relative_bias=RelativeBiasSpec(
                num_buckets=config.get("relative_attention_num_buckets", 32),
                max_distance=config.get("relative_attention_max_distance", 128),
            ),
            activation="gelu_new" if gated and activation == "gelu" else activation,
            is_gated_mlp=bool(gated),
            norm="rms",
            norm_eps=config.get("layer_norm_epsilon", 1e-6),
        ),
        weights=weights,
        alternative_weights=({**weights, "embed.tokens": "encoder.embed_tokens"},),
        prefixes=("transformer.", "model.", ""),
        unused_weights=("decoder.*", "lm_head.*", "encoder.embed_tokens.*", "classifier.*"),
        token_head=make_linear_head("classifier"),
    )


def mt5(config: HFConfig) -> Architecture:
    return t5(config.with_defaults(feed_forward_proj="gated-gelu"))
