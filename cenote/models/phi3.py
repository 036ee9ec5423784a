"""Phi-3 and Phi-4: Mistral with fused projections, of whose heads a part may stay unturned."""

from __future__ import annotations

from dataclasses import replace

from cenote.layers.spec import RopeSpec
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.llama import mistral, partly_turned


def phi3(config: HFConfig) -> Architecture:
    base = mistral(config)
    spec = base.backbone
    fused = {"layers.*.mixer.qkv": "layers.*.self_attn.qkv_proj", "layers.*.mlp.up": "layers.*.mlp.gate_up_proj"}
    turns = _long(partly_turned(spec.rope, config, spec.size_per_head))
    return replace(base, backbone=replace(spec, rope=turns), weights={**base.weights, **fused})


def _long(turns: RopeSpec) -> RopeSpec:
    """Its first configs call the only scaling that it has by other names."""
    scaling = turns.scaling or {}
    kind = scaling.get("rope_type") or scaling.get("type")
    return replace(turns, scaling={**scaling, "rope_type": "longrope"}) if kind in ("su", "yarn") else turns
