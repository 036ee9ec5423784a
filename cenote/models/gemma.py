"""Gemma, Gemma 2 and Gemma 3 (EmbeddingGemma): decoders whose RMS norms scale by 1 + weight."""

from __future__ import annotations

from dataclasses import replace

from cenote.models.architecture import Architecture, HFConfig, rope_from_config
from cenote.models.llama import bidirectional, llama, local_layer_pattern, local_rope_from_config
from cenote.models.qwen import qwen3

BIDIRECTIONAL_KEY = "use_bidirectional_attention"


def gemma(config: HFConfig) -> Architecture:
    base = _gemma(config)
    if not config.get(BIDIRECTIONAL_KEY, False) or not base.backbone.causal:
        return base
    doubt = (
        f"{config.source}: {BIDIRECTIONAL_KEY} is applied here; Transformers ignores it for padded batches of Gemma; "
        'hf_overrides={"is_causal": false} or {"use_bidirectional_attention": false} decides'
    )
    return replace(base, backbone=replace(base.backbone, causal=False), doubts=(doubt,))


def _gemma(config: HFConfig) -> Architecture:
    base = llama(config.with_defaults(num_key_value_heads=16))
    written = config.get("hidden_activation") or config.get("hidden_act", "gelu")
    return replace(
        base,
        backbone=replace(
            base.backbone,
            head_dim=config.get("head_dim", 256),
            embed_scale=config.hidden_size**0.5,
            # early configs say "gelu" but mean the tanh approximation
            activation="gelu_tanh" if written == "gelu" else written,
            norm_offset=1.0,
        ),
    )


def gemma2(config: HFConfig) -> Architecture:
    """Gemma 2: norms before and after attention and MLP; every other layer has sliding-window attention."""
    config = config.with_defaults(sliding_window=4096, attn_logit_softcapping=50.0, num_key_value_heads=4)
    base = _gemma(config)
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
    doubts: tuple[str, ...] = ()
    if config.get(BIDIRECTIONAL_KEY, False) and spec.causal:
        doubts = (
            f"{config.source}: {BIDIRECTIONAL_KEY} is not applied, as in Transformers; "
            'hf_overrides={"is_causal": false} makes attention bidirectional',
        )
    return replace(base, backbone=spec, weights=weights, doubts=doubts)


def gemma3(config: HFConfig) -> Architecture:
    """Gemma 3: Gemma 2 with QK norm instead of soft-capping, and a larger rope theta in full-attention layers."""
    config = config.with_defaults(sliding_window=4096)
    base = gemma2(config)
    is_bidirectional = config.get(BIDIRECTIONAL_KEY, False)
    spec = replace(
        base.backbone,
        causal=base.backbone.causal and not is_bidirectional,
        softcap=None,
        qk_norm="head",
        rope=rope_from_config(config, theta=1e6),
        local_rope=local_rope_from_config(config, config.get("rope_local_base_freq", 1e4)),
        local_layers=local_layer_pattern(config.get("sliding_window_pattern", 6), config),
        # bidirectional: the window size is split between both sides
        window=config.get("sliding_window", 0) // 2 if is_bidirectional else base.backbone.window,
    )
    norms = {f"layers.*.mixer.{x}_norm": f"layers.*.self_attn.{x[0]}_norm" for x in ("query", "key")}
    return replace(base, backbone=spec, weights={**base.weights, **norms}, doubts=())


def codexembed(config: HFConfig) -> Architecture:
    """SFR-Embedding-Code-2B: Gemma 2 under another name."""
    return replace(gemma2(config), prefixes=("model.", "model.model.", ""))


def bidirlm(config: HFConfig) -> Architecture:
    """BidirLM: Gemma 3 or Qwen3 (by the key of the activation) without the causal mask."""
    if "hidden_activation" not in config:
        return replace(bidirectional(qwen3(config)), pooling="MEAN")
    base = gemma3(HFConfig({**config.values, "is_causal": False, "use_bidirectional_attention": False}, config.source))
    window = base.backbone.window or 0
    doubt = (
        f"{config.source}: whether a window of {window} tokens is on each side or on both together is not published; "
        f"embeddings of inputs longer than {window // 2} tokens may differ; use inputs up to that length"
    )
    return replace(base, pooling="MEAN", doubts=(doubt,))
