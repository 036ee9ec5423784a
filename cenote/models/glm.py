"""GLM-4: Llama of whose heads one half turns, neighbours together."""

from __future__ import annotations

from dataclasses import replace

from cenote.models.architecture import Architecture, HFConfig
from cenote.models.llama import llama, partly_turned


def glm(config: HFConfig) -> Architecture:
    base = llama(config)
    spec = base.backbone
    turns = partly_turned(spec.rope, config, spec.size_per_head, default=0.5)
    return replace(
        base,
        backbone=replace(
            spec,
            rope=replace(turns, interleaved=True),
            qkv_bias=config.get("attention_bias", True),
            out_bias=False,
        ),
        weights={**base.weights, "layers.*.mlp.up": "layers.*.mlp.gate_up_proj"},
    )
