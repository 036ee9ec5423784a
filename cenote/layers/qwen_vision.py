"""Vision towers of Qwen-VL, for images of any size: full, windowed, and with deepstack features."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from cenote.layers.backbone import Backbone, EmbeddingTable, VisionFeatures, VisionTower
from cenote.layers.linear import Linear
from cenote.layers.spec import BackboneSpec
from cenote.layers.vision import Grid, PatchEmbedding, PatchMerger, pack_patches, patch_grids, patch_positions
from cenote.packed_batch import PackedImages


class QwenVisionTower(VisionTower):
    """Vision tower with full attention over the patches of an image."""

    def __init__(self, spec: BackboneSpec, patch_dim: int, merge_size: int, out_size: int) -> None:
        super().__init__()
        self.merge_size = merge_size
        self.blocks = Backbone(spec, lambda spec: PatchEmbedding(spec, patch_dim, bias=False))
        self.merger = PatchMerger(spec.hidden_size, merge_size, out_size)

    def forward(self, images: PackedImages) -> VisionFeatures:
        grids = patch_grids(images)
        positions = patch_positions(grids, self.merge_size).to(images.patches.device)
        batch = pack_patches(images.patches, [rows * columns for rows, columns in grids], positions)
        return VisionFeatures(self.merger(self.blocks(batch)))


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


class Qwen3VisionTower(VisionTower):
    """Vision tower with interpolated positions, whose `deepstack_layers` give features to layers of the text model."""

    def __init__(
        self, spec: BackboneSpec, patch_dim: int, merge_size: int, out_size: int, deepstack_layers: Sequence[int]
    ) -> None:
        super().__init__()
        size = spec.hidden_size
        self.merge_size = merge_size
        self.deepstack_layers = tuple(deepstack_layers)
        self.patches = Linear(patch_dim, size, bias=True)
        self.positions = EmbeddingTable(spec.num_learned_positions, size)
        self.blocks = Backbone(spec, lambda _: nn.Identity())
        self.merger = PatchMerger(size, merge_size, out_size)
        self.deeper = nn.ModuleList(
            PatchMerger(size, merge_size, out_size, spec.norm_eps) for _ in self.deepstack_layers
        )

    def forward(self, images: PackedImages) -> VisionFeatures:
        grids = patch_grids(images)
        positions = patch_positions(grids, self.merge_size)
        x = self.patches(images.patches)
        x = x + interpolate_positions(self.positions.weight, positions, grids).to(x.dtype)
        batch = pack_patches(x, [rows * columns for rows, columns in grids], positions.to(x.device))
        deepstack_states: list[Tensor] = []

        def collect_deepstack(number: int, x: Tensor, branch: Tensor | None) -> Tensor:
            if number in self.deepstack_layers:
                deepstack_states.append(x if branch is None else x + branch)
            return x

        last = self.blocks.run_layers(x, batch, layer_hook=collect_deepstack)
        deepstack = tuple(merger(states) for merger, states in zip(self.deeper, deepstack_states, strict=True))
        return VisionFeatures(self.merger(last), deepstack)


def interpolate_positions(table: Tensor, positions: Tensor, grids: Sequence[Grid]) -> Tensor:
    """Interpolate a square table of learned positions bilinearly (aligned corners) to the positions of each grid."""
    side = int(len(table) ** 0.5)
    counts = torch.tensor([rows * columns for rows, columns in grids])
    spans = (torch.tensor(grids) - 1).clamp(min=1).repeat_interleave(counts, dim=0).T
    exact = positions * (side - 1) / spans
    low = exact.floor().long()
    high, fraction = (low + 1).clamp(max=side - 1), (exact - low).to(table.device)
    total = torch.zeros(len(fraction[0]), table.shape[1], device=table.device)
    for row, row_weight in ((low[0], 1 - fraction[0]), (high[0], fraction[0])):
        for column, column_weight in ((low[1], 1 - fraction[1]), (high[1], fraction[1])):
            total += table[(row * side + column).to(table.device)] * (row_weight * column_weight)[:, None]
    return total
