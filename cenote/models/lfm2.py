"""LFM2: decoders with short gated convolutions in most layers and attention in the others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cenote.layers.spec import BackboneSpec
from cenote.models.architecture import Architecture, HFConfig, make_linear_head, makes, rope_from_config
from cenote.models.llama import bidirectional

if TYPE_CHECKING:
    from torch import nn


def lfm2(config: HFConfig) -> Architecture:
    """LFM2; `is_causal` of config.json is of the attention, convolutions are always causal."""
    return _lfm2(config, causal_convolutions=True)


def _lfm2(config: HFConfig, *, causal_convolutions: bool) -> Architecture:
    attends = config.get("full_attn_idxs") or range(config.num_hidden_layers)
    kinds = config.get("layer_types") or ["full" if n in attends else "conv" for n in range(config.num_hidden_layers)]
    width, bias = config.get("conv_L_cache", 3), config.get("conv_bias", False)

    @makes("short convolutions")
    def mixer(spec: BackboneSpec, layer: int) -> nn.Module:
        from cenote.layers.attention import Attention
        from cenote.layers.convolution import GatedConvolution

        if kinds[layer] == "conv":
            return GatedConvolution(replace(spec, causal=causal_convolutions), width, bias=bias)
        return Attention(spec, layer)

    return Architecture(
        backbone=BackboneSpec(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=_intermediate_size(config),
            num_layers=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.with_defaults(num_key_value_heads=8).num_key_value_heads,
            head_dim=config.get("head_dim"),
            causal=config.get("is_causal", True),
            rope=rope_from_config(config, theta=1e6),
            qk_norm="head",
            activation="silu",
            is_gated_mlp=True,
            norm="rms",
            norm_eps=config.get("norm_eps", 1e-5),
        ),
        weights={
            "embed.tokens": "embed_tokens",
            "layers.*.mixer.into": "layers.*.conv.in_proj",
            "layers.*.mixer.conv": "layers.*.conv.conv",
            "layers.*.mixer.project": "layers.*.conv.out_proj",
            "layers.*.mixer.qkv": [f"layers.*.self_attn.{x}_proj" for x in "qkv"],
            "layers.*.mixer.query_norm": "layers.*.self_attn.q_layernorm",
            "layers.*.mixer.key_norm": "layers.*.self_attn.k_layernorm",
            "layers.*.mixer.out": "layers.*.self_attn.out_proj",
            "layers.*.mixer_norm": "layers.*.operator_norm",
            "layers.*.mlp.up": ["layers.*.feed_forward.w1", "layers.*.feed_forward.w3"],
            "layers.*.mlp.down": "layers.*.feed_forward.w2",
            "layers.*.mlp_norm": "layers.*.ffn_norm",
            "norm": "embedding_norm",
        },
        prefixes=("model.", "lfm2.", ""),
        unused_weights=("lm_head.*", "score.*"),
        make_mixer=mixer,
        sequence_head=make_linear_head("score", bias=None),
        token_head=make_linear_head("score", bias=None),
        pairs_with_separator=False,
    )


def bidirectional_lfm2(config: HFConfig) -> Architecture:
    """LFM2.5 as an encoder: bidirectional attention and centred convolutions."""
    return replace(bidirectional(_lfm2(config, causal_convolutions=False)), pooling="CLS")


def _intermediate_size(config: HFConfig) -> int:
    """Return the MLP size: `block_ff_dim` times two thirds, as in LLaMA, rounded up to `block_multiple_of`."""
    size: int = config.get("block_ff_dim") or config.intermediate_size
    if not config.get("block_auto_adjust_ff_dim", True):
        return size
    multiple: int = config.get("block_multiple_of", 256)
    return -(-int(config.get("block_ffn_dim_multiplier", 1.0) * int(2 * size / 3)) // multiple) * multiple
