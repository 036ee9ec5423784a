"""A tower whose patches become tokens of the text half through one matrix."""

from __future__ import annotations

from cenote.layers.backbone import Backbone, Seen, Tower
from cenote.layers.linear import Linear
from cenote.layers.tiled_vision import merged
from cenote.layers.vision import grids_of, tower_batch
from cenote.packed_batch import PackedImages


class ProjectedTower(Tower):
    """Tiles of one size; squares of `block` patches on each side are one token."""

    def __init__(self, encoder: Backbone, size: int, *, bias: bool, block: int = 1) -> None:
        super().__init__()
        self.encoder = encoder
        self.block = block
        self.projection = Linear(encoder.spec.hidden_size * block**2, size, bias=bias)

    def forward(self, images: PackedImages) -> Seen:
        grids = grids_of(images)
        states = self.encoder(tower_batch(images.patches, [rows * columns for rows, columns in grids]))
        return Seen(self.projection(merged(states, grids[0], self.block)))
