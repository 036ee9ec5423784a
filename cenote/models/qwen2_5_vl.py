"""Qwen2.5-VL: most layers of its tower see a window of the image, some see all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from cenote.layers.backbone import Backbone, Seen, Tower
from cenote.layers.spec import BackboneSpec
from cenote.layers.vision import Grid, Merger, PatchEmbedding, grids_of, places_on, tower_batch
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.qwen2_vl import (
    BLOCKS,
    MAX_SIDE,
    NORM_EPS,
    PATCHES,
    VISUAL,
    images_of,
    numbers,
    rope_of_patches,
    text_half,
)
from cenote.models.vision_spec import Vision
from cenote.models.weight_table import WeightTable
from cenote.packed_batch import PackedImages


class WindowTower(Tower):
    """Patches are laid so that those of a window are neighbours; what the merger makes of them is laid back."""

    def __init__(self, spec: BackboneSpec, numbers: int, merge: int, side: int, out_size: int) -> None:
        super().__init__()
        self.merge = merge
        self.side = side  # of a window, in rows of the merger
        self.blocks = Backbone(spec, lambda spec: PatchEmbedding(spec, numbers, bias=False))
        self.merger = Merger(spec.hidden_size, merge, out_size)

    def forward(self, images: PackedImages) -> Seen:
        grids, device = grids_of(images), images.patches.device
        squares, sizes = in_windows([(rows // self.merge, columns // self.merge) for rows, columns in grids], self.side)
        unit = self.merge**2
        order = (squares[:, None] * unit + torch.arange(unit)).flatten()
        places = places_on(grids, self.merge)[:, order].to(device)
        patches = images.patches[order.to(device)]
        whole = tower_batch(patches, [rows * columns for rows, columns in grids], places)
        windows = tower_batch(patches, [size * unit for size in sizes])
        merged = self.merger(self.blocks.through(self.blocks.embed(whole), whole, windows=windows))
        return Seen(merged[squares.argsort().to(device)])


def in_windows(grids: Sequence[Grid], side: int) -> tuple[Tensor, list[int]]:
    """The order of places in which windows lie together, image after image, and how many places each window has."""
    starts = accumulate((rows * columns for rows, columns in grids), initial=0)
    found = [_in_windows(rows, columns, side) for rows, columns in grids]
    order = torch.cat([order + start for (order, _), start in zip(found, starts, strict=False)])
    return order, torch.cat([sizes for _, sizes in found]).tolist()


def _in_windows(rows: int, columns: int, side: int) -> tuple[Tensor, Tensor]:
    down, across = torch.meshgrid(torch.arange(rows) // side, torch.arange(columns) // side, indexing="ij")
    _, window, sizes = torch.unique(down * columns + across, return_inverse=True, return_counts=True)
    by_size = sizes.argsort(descending=True, stable=True)  # neighbours of one size are attended to at once
    return by_size.argsort()[window.flatten()].argsort(stable=True), sizes[by_size]


def qwen2_5_vl(config: HFConfig) -> Architecture:
    vision = config.part("vision_config", depth=32, hidden_size=3584, intermediate_size=3420, num_heads=16)
    vision = vision.otherwise(**PATCHES, out_hidden_size=3584, window_size=112, fullatt_block_indexes=(7, 15, 23, 31))
    spec = BackboneSpec(
        vocab_size=1,
        hidden_size=vision.hidden_size,
        intermediate_size=vision.intermediate_size,
        num_layers=vision.depth,
        num_heads=vision.num_heads,
        max_positions=MAX_SIDE,
        rope=rope_of_patches(vision, vision.hidden_size),
        local_layers=tuple(layer not in vision.fullatt_block_indexes for layer in range(vision.depth)),
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        activation=vision.get("hidden_act", "silu"),
        gated=True,
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
        text_half(config),
        vision=Vision(
            tower=lambda: WindowTower(spec, numbers(vision), merge, side, vision.out_hidden_size),
            weights={**BLOCKS, **mlp},
            num_layers=spec.num_layers,
            images=images_of(config, vision),
            prefixes=VISUAL,
        ),
    )
