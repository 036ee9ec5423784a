"""Qwen2.5-VL: Qwen2-VL with windowed attention in most layers of the vision tower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from cenote.layers.backbone import Backbone, VisionFeatures, VisionTower
from cenote.layers.spec import BackboneSpec
from cenote.layers.vision import Grid, PatchEmbedding, PatchMerger, pack_patches, patch_grids, patch_positions
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
from cenote.packed_batch import PackedImages


class WindowedVisionTower(VisionTower):
    """Vision tower that reorders patches by window and restores the order after the merger."""

    def __init__(self, spec: BackboneSpec, patch_dim: int, merge_size: int, window_size: int, out_size: int) -> None:
        super().__init__()
        self.merge_size = merge_size
        self.window_size = window_size  # side of a window, in merged patches
        self.blocks = Backbone(spec, lambda spec: PatchEmbedding(spec, patch_dim, bias=False))
        self.merger = PatchMerger(spec.hidden_size, merge_size, out_size)

    def forward(self, images: PackedImages) -> VisionFeatures:
        grids, device = patch_grids(images), images.patches.device
        squares, sizes = window_order(
            [(rows // self.merge_size, columns // self.merge_size) for rows, columns in grids], self.window_size
        )
        unit = self.merge_size**2
        order = (squares[:, None] * unit + torch.arange(unit)).flatten()
        positions = patch_positions(grids, self.merge_size)[:, order].to(device)
        patches = images.patches[order.to(device)]
        full = pack_patches(patches, [rows * columns for rows, columns in grids], positions)
        windows = pack_patches(patches, [size * unit for size in sizes])
        merged = self.merger(self.blocks.run_layers(self.blocks.embed(full), full, local_batch=windows))
        return VisionFeatures(merged[squares.argsort().to(device)])


def window_order(grids: Sequence[Grid], window_size: int) -> tuple[Tensor, list[int]]:
    """Return the order of merged patches that groups them by window, and the number of merged patches per window."""
    starts = accumulate((rows * columns for rows, columns in grids), initial=0)
    grid_orders = [_grid_window_order(rows, columns, window_size) for rows, columns in grids]
    order = torch.cat([order + start for (order, _), start in zip(grid_orders, starts, strict=False)])
    return order, torch.cat([sizes for _, sizes in grid_orders]).tolist()


def _grid_window_order(rows: int, columns: int, window_size: int) -> tuple[Tensor, Tensor]:
    down, across = torch.meshgrid(
        torch.arange(rows) // window_size, torch.arange(columns) // window_size, indexing="ij"
    )
    _, window, sizes = torch.unique(down * columns + across, return_inverse=True, return_counts=True)
    by_size = sizes.argsort(descending=True, stable=True)  # adjacent windows of equal size are batched in attention
    return by_size.argsort()[window.flatten()].argsort(stable=True), sizes[by_size]


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
    mlp: WeightTable = {
        "blocks.layers.*.mlp.up": ["blocks.*.mlp.gate_proj", "blocks.*.mlp.up_proj"],
        "blocks.layers.*.mlp.down": "blocks.*.mlp.down_proj",
    }
    return replace(
        text_architecture(config),
        vision=VisionSpec(
            make_tower=lambda: WindowedVisionTower(spec, patch_dim(vision), merge, side, vision.out_hidden_size),
            weights={**TOWER_WEIGHTS, **mlp},
            num_layers=spec.num_layers,
            image_spec=image_spec(config, vision),
            prefixes=VISION_PREFIXES,
        ),
    )
