"""T5: the encoder; pre-norm, without biases, with a relative attention bias."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cenote.layers.spec import BackboneSpec, RelativeBiasSpec
from cenote.models.architecture import Architecture, HFConfig, make_linear_head, makes

if TYPE_CHECKING:
    from cenote.layers.backbone import Backbone


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
    encoder = Architecture(
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
    return replace(encoder, language_model=_with_decoder_step(encoder, config))


def _with_decoder_step(encoder: Architecture, config: HFConfig) -> Architecture:
    """Return the encoder with the first step of the decoder, whose state the LM head reads (monoT5)."""
    # states are scaled for an LM head that is the embedding table; newer configs have a key for it
    is_scaled = config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True))
    num_layers = config.get("num_decoder_layers", config.num_layers)
    start, scale = config.get("decoder_start_token_id", 0), config.d_model**-0.5 if is_scaled else 1.0
    weights = {**encoder.weights, "decoder_norm": "decoder.final_layer_norm"}
    for layer in range(num_layers):
        name, block = f"decoder_layers.{layer}", f"decoder.block.{layer}.layer"
        up = encoder.weights["layers.*.mlp.up"]
        stored = [up] if isinstance(up, str) else list(up) if isinstance(up, list) else []
        weights |= {
            f"{name}.self_value": f"{block}.0.SelfAttention.v",
            f"{name}.self_out": f"{block}.0.SelfAttention.o",
            f"{name}.self_norm": f"{block}.0.layer_norm",
            f"{name}.cross_query": f"{block}.1.EncDecAttention.q",
            f"{name}.cross_key_value": [f"{block}.1.EncDecAttention.{x}" for x in "kv"],
            f"{name}.cross_out": f"{block}.1.EncDecAttention.o",
            f"{name}.cross_norm": f"{block}.1.layer_norm",
            f"{name}.mlp.up": [f"{block}.2.DenseReluDense.{x.rpartition('.')[2]}" for x in stored],
            f"{name}.mlp.down": f"{block}.2.DenseReluDense.wo",
            f"{name}.mlp_norm": f"{block}.2.layer_norm",
        }

    @makes("decoder beside the encoder")
    def backbone(*arguments: Any) -> Backbone:
        from cenote.layers.decoder_step import DecoderStepBackbone

        return DecoderStepBackbone(start, num_layers, scale, *arguments)

    return replace(
        encoder,
        pooling="LAST",
        weights=weights,
        alternative_weights=({**weights, "embed.tokens": "encoder.embed_tokens"},),
        backbone_class=backbone,
        sequence_head=make_linear_head("lm_head", bias=False, pooling="LAST"),
        pairs_with_separator=False,
    )


def mt5(config: HFConfig) -> Architecture:
    return t5(config.with_defaults(feed_forward_proj="gated-gelu"))
