"""Vision tower whose patches are projected to the text model by one linear layer."""

from __future__ import annotations

from cenote.layers.backbone import Backbone, VisionFeatures, VisionTower
from cenote.layers.linear import Linear
from cenote.layers.tiled_vision import merge_patches
from cenote.layers.vision import pack_patches, patch_grids
from cenote.packed_batch import PackedImages


class ProjectedTower(VisionTower):
    """Encode tiles of one size; squares of `merge_size` patches per side become one token."""

    def __init__(self, encoder: Backbone, out_size: int, *, bias: bool, merge_size: int = 1) -> None:
        super().__init__()
        self.encoder = encoder
        self.merge_size = merge_size
        self.projection = Linear(encoder.spec.hidden_size * merge_size**2, out_size, bias=bias)

    def forward(self, images: PackedImages) -> VisionFeatures:
        grids = patch_grids(images)
        states = self.encoder(pack_patches(images.patches, [rows * columns for rows, columns in grids]))
        return VisionFeatures(self.projection(merge_patches(states, grids[0], self.merge_size)))
