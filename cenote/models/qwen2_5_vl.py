"""Qwen2.5-VL: Qwen2-VL with windowed attention in most layers of the vision tower."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cenote.layers.spec import BackboneSpec
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.qwen2_vl import (
    MAX_PATCHES_PER_SIDE,
    NORM_EPS,
    PATCH_DEFAULTS,
    TOWER_WEIGHTS,
    VISION_PREFIXES,
    image_spec,
    patch_dim,
    patch_rope_spec,
    text_architecture,
)
from cenote.models.vision_spec import VisionSpec
from cenote.models.weight_table import WeightTable

if TYPE_CHECKING:
    from cenote.layers.backbone import VisionTower


def qwen2_5_vl(config: HFConfig) -> Architecture:
    vision = config.sub_config("vision_config", depth=32, hidden_size=3584, intermediate_size=3420, num_heads=16)
    vision = vision.with_defaults(
        **PATCH_DEFAULTS, out_hidden_size=3584, window_size=112, fullatt_block_indexes=(7, 15, 23, 31)
    )
    spec = BackboneSpec(
        vocab_size=1,
        hidden_size=vision.hidden_size,
        intermediate_size=vision.intermediate_size,
        num_layers=vision.depth,
        num_heads=vision.num_heads,
        max_positions=MAX_PATCHES_PER_SIDE,
        rope=patch_rope_spec(vision, vision.hidden_size),
        local_layers=tuple(layer not in vision.fullatt_block_indexes for layer in range(vision.depth)),
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        activation=vision.get("hidden_act", "silu"),
        is_gated_mlp=True,
        norm="rms",
        norm_eps=NORM_EPS,
    )
    merge = vision.spatial_merge_size
    side = vision.window_size // merge // vision.patch_size

    def make_tower() -> VisionTower:
        from cenote.layers.qwen_vision import WindowedVisionTower

        return WindowedVisionTower(spec, patch_dim(vision), merge, side, vision.out_hidden_size)

    mlp: WeightTable = {
        "blocks.layers.*.mlp.up": ["blocks.*.mlp.gate_proj", "blocks.*.mlp.up_proj"],
        "blocks.layers.*.mlp.down": "blocks.*.mlp.down_proj",
    }
    return replace(
        text_architecture(config),
        vision=VisionSpec(
            make_tower=make_tower,
            weights={**TOWER_WEIGHTS, **mlp},
            num_layers=spec.num_layers,
            image_spec=image_spec(config, vision),
            prefixes=VISION_PREFIXES,
        ),
    )
