"""GLM-4: Llama with interleaved rotary embedding on half of each head."""

from __future__ import annotations

from dataclasses import replace

from cenote.models.architecture import Architecture, HFConfig, rope_from_config
from cenote.models.llama import llama


def glm(config: HFConfig) -> Architecture:
    config = config.with_defaults(
        num_key_value_heads=2, head_dim=128, rms_norm_eps=1.5625e-7, partial_rotary_factor=0.5
    )
    base, rope = llama(config), rope_from_config(config)
    return replace(
        base,
        backbone=replace(
            base.backbone,
            rope=replace(rope, interleaved=True),
            qkv_bias=config.get("attention_bias", True),
            out_bias=False,
        ),
        weights={**base.weights, "layers.*.mlp.up": "layers.*.mlp.gate_up_proj"},
    )
