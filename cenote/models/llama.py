"""Llama, Mistral and decoders with the same architecture; bidirectional if config.json says so."""

from __future__ import annotations

from dataclasses import replace

from cenote.errors import LoadError
from cenote.layers.spec import BackboneSpec, RopeSpec
from cenote.models.architecture import Architecture, HFConfig, make_linear_head, rope_from_config, sliding_window_layers

POOLING_METHODS = {"avg": "MEAN", "cls": "CLS", "last": "LAST"}


def llama(config: HFConfig) -> Architecture:
    """Llama: pre-norm, rotary positions, gated MLP; the base of most decoders."""
    causal = config.get("is_causal", True)
    bias = config.get("attention_bias") or config.get("bias", False)
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
            rope=rope_from_config(config),
            local_layers=sliding_window_layers(config),
            window=config.get("sliding_window", 0) - int(causal),  # a causal window includes the token itself
            qkv_bias=config.get("qkv_bias", bias),
            out_bias=bias,
            mlp_bias=config.get("mlp_bias", False),
            activation=config.get("hidden_act", "silu"),
            is_gated_mlp=True,
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
        unused_weights=("lm_head.*", "score.*"),
        sequence_head=make_linear_head("score", bias=None),
        token_head=make_linear_head("score", bias=None),
        pairs_with_separator=False,
    )


def mistral(config: HFConfig) -> Architecture:
    """Llama with sliding-window attention in all layers, if `sliding_window` is set and `layer_types` is not."""
    config = config.with_defaults(sliding_window=4096, num_key_value_heads=8)
    base = llama(config)
    if "sliding_window" not in config or "layer_types" in config:
        return base
    return replace(base, backbone=replace(base.backbone, local_layers=(True,) * base.backbone.num_layers))


def bidirectional(base: Architecture) -> Architecture:
    """Return the architecture with bidirectional attention."""
    return replace(base, backbone=replace(base.backbone, causal=False, local_layers=()))


def bidirectional_llama(config: HFConfig) -> Architecture:
    """Embedders and rerankers of Nemotron; `pooling` of config.json applies to the classifier too."""
    pooling = pooling_from_config(config, default="avg")
    return replace(
        bidirectional(llama(config)),
        pooling=pooling,
        sequence_head=make_linear_head("score", bias=None, pooling=pooling),
        score_template="nemotron_rerank",
    )


def pooling_from_config(config: HFConfig, default: str) -> str:
    """Return the pooling method that `pooling` of config.json names."""
    name = config.get("pooling", default)
    if name not in POOLING_METHODS:
        raise LoadError(f"{config.source}: pooling is {name!r}; expected one of: {', '.join(POOLING_METHODS)}")
    return POOLING_METHODS[name]


def gritlm(config: HFConfig) -> Architecture:
    return replace(bidirectional(llama(config)), pooling="MEAN", pooling_start_token="<|embed|>\n")


def local_layer_pattern(period: int, config: HFConfig) -> tuple[bool, ...]:
    """Return which layers have sliding-window attention: by `layer_types`, else all but every `period`-th."""
    if "layer_types" in config:
        return sliding_window_layers(config)
    windowed = config.sliding_window is not None
    return tuple(windowed and (layer + 1) % period > 0 for layer in range(config.num_hidden_layers))


def local_rope_from_config(config: HFConfig, theta: float) -> RopeSpec:
    """Return the rope of sliding-window layers; `rope_scaling` applies only to full-attention layers."""
    parameters = config.get("rope_parameters", {}).get("sliding_attention")
    own = {"rope_theta": theta, "rope_parameters": parameters, "rope_scaling": None}
    return rope_from_config(HFConfig({**config.values, **own}, config.source))
