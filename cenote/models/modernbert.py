"""ModernBERT: pre-norm encoders with rotary positions that mostly look at their neighbourhood."""

from __future__ import annotations

from dataclasses import replace

from cenote.layers.spec import BackboneSpec, HeadSpec, RopeSpec
from cenote.models.architecture import Architecture, Head, HFConfig


def modernbert(config: HFConfig) -> Architecture:
    every = config.get("global_attn_every_n_layers", 3)
    kinds = config.get("layer_types") or ["sliding" if n % every else "full" for n in range(config.num_hidden_layers)]
    rope, bias = config.get("rope_parameters", {}), config.get("norm_bias", False)
    head_bias, activation = config.get("classifier_bias", False), config.get("classifier_activation", "gelu")
    prediction = {"head.dense": "head.dense", "head.norm": "head.norm", "head.classifier": "classifier"}
    eps = config.get("norm_eps", 1e-5)
    whole = {"dense": True, "dense_bias": head_bias, "dense_activation": activation, "norm": True}
    head = HeadSpec(**whole, norm_eps=eps, norm_bias=bias, pooling=config.get("classifier_pooling", "cls").upper())

    def theta(kind: str, key: str, default: float) -> RopeSpec:
        return RopeSpec(theta=rope.get(kind, {}).get("rope_theta") or config.get(key, default))

    return Architecture(
        pooling="CLS",
        backbone=BackboneSpec(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_layers=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            embed_norm=True,
            first_norm=False,
            rope=theta("full_attention", "global_rope_theta", 160000.0),
            local_rope=theta("sliding_attention", "local_rope_theta", 10000.0),
            local_layers=tuple(kind.startswith("sliding") for kind in kinds),
            window=config.get("local_attention", 128) // 2,
            qkv_bias=config.get("attention_bias", False),
            out_bias=config.get("attention_bias", False),
            mlp_bias=config.get("mlp_bias", False),
            activation=config.get("hidden_activation", "gelu"),
            gated=True,
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
        unused=("head.*", "decoder.*", "classifier.*"),
        sequence_head=Head(spec=head, weights=prediction),
        token_head=Head(spec=replace(head, whole_per_token=True), weights=prediction),
    )
