"""ModernBERT: pre-norm encoders with rotary positions and local attention in most layers."""

from __future__ import annotations

from dataclasses import replace

from cenote.errors import LoadError
from cenote.layers.spec import BackboneSpec, HeadSpec
from cenote.models.architecture import Architecture, Head, HFConfig, rope_from_config


def modernbert(config: HFConfig) -> Architecture:
    every = config.get("global_attn_every_n_layers", 3)
    kinds = config.get("layer_types") or ["sliding" if n % every else "full" for n in range(config.num_hidden_layers)]
    local_layers = tuple(kind.startswith("sliding") for kind in kinds)
    window = config.get("sliding_window", config.get("local_attention", 128) // 2)
    if window < 0 and any(local_layers):  # full attention in some versions of Transformers, undefined in others
        raise LoadError(
            f"{config.source}: local_attention {config.get('local_attention')} is no window; set hf_overrides="
            '{"global_attn_every_n_layers": 1, "layer_types": null} for full attention in all layers'
        )
    eps, bias = config.get("norm_eps", 1e-5), config.get("norm_bias", False)
    head = HeadSpec(
        pooling=config.get("classifier_pooling", "cls").upper(),
        has_dense=True,
        dense_bias=config.get("classifier_bias", False),
        dense_activation=config.get("classifier_activation", "gelu"),
        has_norm=True,
        norm_eps=eps,
        norm_bias=bias,
    )
    per_token = replace(head, full_head_per_token=True)
    transform = {"head.dense": "head.dense", "head.norm": "head.norm"}
    decoder_bias = config.get("decoder_bias", True)
    tied = {"head.classifier.weight": "embeddings.tok_embeddings.weight"}
    return Architecture(
        pooling="CLS",
        backbone=BackboneSpec(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_layers=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            has_embed_norm=True,
            has_first_norm=False,
            rope=rope_from_config(config, "full_attention", theta=config.get("global_rope_theta", 160000.0)),
            local_rope=rope_from_config(config, "sliding_attention", theta=config.get("local_rope_theta", 10000.0)),
            local_layers=local_layers,
            window=window,
            qkv_bias=config.get("attention_bias", False),
            out_bias=config.get("attention_bias", False),
            mlp_bias=config.get("mlp_bias", False),
            activation=config.get("hidden_activation", "gelu"),
            is_gated_mlp=True,
            norm_eps=eps,
            norm_bias=bias,
        ),
        weights={
            "embed.tokens": "embeddings.tok_embeddings",
            "embed.norm": "embeddings.norm",
            "layers.*.mixer.qkv": "layers.*.attn.Wqkv",
            "layers.*.mixer.out": "layers.*.attn.Wo",
            "layers.*.mixer_norm": "layers.*.attn_norm",
            "layers.*.mlp.up": "layers.*.mlp.Wi",
            "layers.*.mlp.down": "layers.*.mlp.Wo",
            "layers.*.mlp_norm": "layers.*.mlp_norm",
            "norm": "final_norm",
        },
        unused_weights=("head.*", "decoder.*", "classifier.*"),
        sequence_head=Head(spec=head, weights=transform | {"head.classifier": "classifier"}),
        token_head=Head(spec=per_token, weights=transform | {"head.classifier": "classifier"}),
        masked_head=Head(
            spec=replace(per_token, bias=decoder_bias),
            weights=transform | {"head.classifier": "decoder"},
            alternative_weights=(
                transform | tied | ({"head.classifier.bias": "decoder.bias"} if decoder_bias else {}),
            ),
        ),
    )
