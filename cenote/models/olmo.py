"""OLMo, OLMo 2 and OLMo 3: Llama with norms without weights (1), or norms after attention and MLP (2, 3)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cenote.layers.spec import BackboneSpec
from cenote.models.architecture import Architecture, HFConfig, makes, rope_from_config
from cenote.models.llama import llama, local_layer_pattern, local_rope_from_config

if TYPE_CHECKING:
    from torch import nn


def olmo(config: HFConfig) -> Architecture:
    base, limit = llama(config), config.get("clip_qkv")

    @makes("clipped attention")
    def mixer(spec: BackboneSpec, layer: int) -> nn.Module:
        from cenote.layers.attention_variants import ClippedAttention

        return ClippedAttention(spec, layer, limit)

    return replace(
        base,
        backbone=replace(base.backbone, norm="layer", norm_affine=False, norm_eps=1e-5),
        weights={name: stored for name, stored in base.weights.items() if "norm" not in name},
        make_mixer=None if limit is None else mixer,
    )


def olmo2(config: HFConfig) -> Architecture:
    base = llama(config.with_defaults(rms_norm_eps=1e-5))
    weights = {
        **base.weights,
        "layers.*.mixer.query_norm": "layers.*.self_attn.q_norm",
        "layers.*.mixer.key_norm": "layers.*.self_attn.k_norm",
        "layers.*.mixer_out_norm": "layers.*.post_attention_layernorm",
        "layers.*.mlp_out_norm": "layers.*.post_feedforward_layernorm",
    }
    del weights["layers.*.mixer_norm"], weights["layers.*.mlp_norm"]
    return replace(base, backbone=replace(base.backbone, norm_order="output", qk_norm="width"), weights=weights)


def olmo3(config: HFConfig) -> Architecture:
    """OLMo 2 with sliding-window attention in three of four layers; rope scaling applies only to the fourth."""
    config = config.with_defaults(sliding_window=4096)
    base = olmo2(config)
    spec = replace(
        base.backbone,
        rope=rope_from_config(config, theta=5e5),
        local_rope=local_rope_from_config(config, config.get("rope_theta", 5e5)),
        local_layers=local_layer_pattern(4, config),
    )
    return replace(base, backbone=spec)
