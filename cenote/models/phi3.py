"""Phi-3 and Phi-4: Mistral with fused projections."""

from __future__ import annotations

from dataclasses import replace

from cenote.models.architecture import Architecture, HFConfig, rope_from_config
from cenote.models.llama import mistral


def phi3(config: HFConfig) -> Architecture:
    config = config.with_defaults(sliding_window=None, num_key_value_heads=None, rms_norm_eps=1e-5)
    base, rope = mistral(config), rope_from_config(config)
    scaling = rope.scaling or {}
    if (scaling.get("rope_type") or scaling.get("type")) == "yarn":  # early configs call LongRoPE "yarn"
        rope = replace(rope, scaling={**scaling, "rope_type": "longrope"})
    return replace(
        base,
        backbone=replace(base.backbone, rope=rope),
        weights={
            **base.weights,
            "layers.*.mixer.qkv": "layers.*.self_attn.qkv_proj",
            "layers.*.mlp.up": "layers.*.mlp.gate_up_proj",
        },
    )
