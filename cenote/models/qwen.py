"""Qwen2 and Qwen3: pre-norm decoders with rotary positions; bidirectional where config.json says so."""

from __future__ import annotations

from dataclasses import replace

from cenote.layers.spec import BackboneSpec
from cenote.models.architecture import Architecture, HFConfig, linear_head, rope, sliding_layers


def qwen2(config: HFConfig) -> Architecture:
    causal = config.get("is_causal", True)
    return Architecture(
        backbone=BackboneSpec(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_layers=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.get("num_key_value_heads"),
            head_dim=config.get("head_dim"),
            causal=causal,
            rope=rope(config),
            local_layers=sliding_layers(config),
            window=config.get("sliding_window", 1) - int(causal),  # a causal one counts the token itself
            qkv_bias=True,
            activation=config.get("hidden_act", "silu"),
            gated=True,
            norm="rms",
            norm_eps=config.get("rms_norm_eps", 1e-6),
        ),
        weights={
            "embed.tokens": "embed_tokens",
            "layers.*.mixer.qkv": [f"layers.*.self_attn.{x}_proj" for x in "qkv"],
            "layers.*.mixer.out": "layers.*.self_attn.o_proj",
            "layers.*.mixer_norm": "layers.*.input_layernorm",
            "layers.*.mlp.up": ["layers.*.mlp.gate_proj", "layers.*.mlp.up_proj"],
            "layers.*.mlp.down": "layers.*.mlp.down_proj",
            "layers.*.mlp_norm": "layers.*.post_attention_layernorm",
            "norm": "norm",
        },
        unused=("lm_head.*", "score.*"),
        sequence_head=linear_head("score", bias=None),
        token_head=linear_head("score", bias=None),
        pairs_with_separator=False,
    )


def qwen3(config: HFConfig) -> Architecture:
    """Qwen2 with normed query and key heads instead of biases."""
    base = qwen2(config)
    bias = config.get("attention_bias", False)
    norms = {f"layers.*.mixer.{x}_norm": f"layers.*.self_attn.{x[0]}_norm" for x in ("query", "key")}
    return replace(
        base,
        backbone=replace(base.backbone, qk_norm="head", qkv_bias=bias, out_bias=bias),
        weights={**base.weights, **norms},
    )
