"""Gemma, Gemma 2 and Gemma 3 (EmbeddingGemma): decoders whose norms add one to their weights."""

from __future__ import annotations

from dataclasses import replace

from cenote.models.architecture import Architecture, HFConfig, rope_from_config
from cenote.models.llama import llama, local_layer_pattern, local_rope_from_config


def gemma(config: HFConfig) -> Architecture:
    base = llama(config.with_defaults(num_key_value_heads=16))
    both_ways = config.get("use_bidirectional_attention", False)
    written = config.get("hidden_activation") or config.get("hidden_act", "gelu")
    return replace(
        base,
        backbone=replace(
            base.backbone,
            head_dim=config.get("head_dim", 256),
            embed_scale=config.hidden_size**0.5,
            causal=base.backbone.causal and not both_ways,
            # the first configs say gelu and mean its approximation
            activation="gelu_tanh" if written == "gelu" else written,
            norm_offset=1.0,
        ),
    )


def gemma2(config: HFConfig) -> Architecture:
    """Norms around both halves of a block; every other layer sees a window."""
    config = config.with_defaults(sliding_window=4096, attn_logit_softcapping=50.0, num_key_value_heads=4)
    base = gemma(config)
    weights = {
        **base.weights,
        "layers.*.mixer_out_norm": "layers.*.post_attention_layernorm",
        "layers.*.mlp_norm": "layers.*.pre_feedforward_layernorm",
        "layers.*.mlp_out_norm": "layers.*.post_feedforward_layernorm",
    }
    spec = replace(
        base.backbone,
        norm_order="sandwich",
        scale=config.get("query_pre_attn_scalar", 256) ** -0.5,
        softcap=config.get("attn_logit_softcapping"),
        local_layers=local_layer_pattern(2, config),
    )
    return replace(base, backbone=spec, weights=weights)


def gemma3(config: HFConfig) -> Architecture:
    """Gemma 2 with normed query and key heads instead of a cap, and slower turns where it sees everything."""
    config = config.with_defaults(sliding_window=4096)
    base = gemma2(config)
    both_ways = config.get("use_bidirectional_attention", False)
    spec = replace(
        base.backbone,
        softcap=None,
        qk_norm="head",
        rope=rope_from_config(config, theta=1e6),
        local_rope=local_rope_from_config(config, config.get("rope_local_base_freq", 1e4)),
        local_layers=local_layer_pattern(config.get("sliding_window_pattern", 6), config),
        # the tokens on both sides share the window of a causal model
        window=config.get("sliding_window", 0) // 2 if both_ways else base.backbone.window,
    )
    norms = {f"layers.*.mixer.{x}_norm": f"layers.*.self_attn.{x[0]}_norm" for x in ("query", "key")}
    return replace(base, backbone=spec, weights={**base.weights, **norms})
