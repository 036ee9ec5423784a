"""CWM: Llama with sliding-window attention except in every fourth layer, starting with the first."""

from __future__ import annotations

from dataclasses import replace

from cenote.models.architecture import Architecture, HFConfig, rope_from_config
from cenote.models.llama import llama

ROPE_DEFAULTS = {
    "rope_type": "llama3",
    "rope_theta": 1e6,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def cwm(config: HFConfig) -> Architecture:
    kinds = ["sliding_attention" if layer % 4 else "full_attention" for layer in range(config.num_hidden_layers)]
    written = HFConfig({**config.values, "layer_types": config.get("layer_types", kinds)}, config.source)
    base = llama(written.with_defaults(sliding_window=8192, num_key_value_heads=8, head_dim=128, rms_norm_eps=1e-5))
    return replace(
        base, backbone=replace(base.backbone, rope=rope_from_config(config, theta=1e6, defaults=ROPE_DEFAULTS))
    )
