"""Vision towers that split an image into tiles: merging of patches, ordering of rows, and projection."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from cenote.layers.backbone import Backbone, VisionFeatures, VisionTower
from cenote.layers.linear import Linear
from cenote.layers.norm import LayerNorm
from cenote.layers.vision import Grid, pack_patches, patch_grids
from cenote.packed_batch import PackedImages


def merge_patches(x: Tensor, grid: Grid, merge_size: int) -> Tensor:
    """Concatenate squares of patches: [patches / merge_size**2, hidden * merge_size**2]; all tiles have this grid."""
    rows, columns = grid
    squares = x.view(-1, rows // merge_size, merge_size, columns // merge_size, merge_size, x.shape[-1])
    return squares.transpose(2, 3).reshape(-1, merge_size * merge_size * x.shape[-1])


def arrange_rows(x: Tensor, separators: Tensor, images: PackedImages, merge_size: int = 1) -> Tensor:
    """Return one row per image token in the processor's order: of x, or of `separators` for negative indices."""
    indices, first = [], 0
    for image in images.images:
        assert image.row_order is not None, "image processors of tiled models set row_order"
        indices.append(np.where(image.row_order < 0, len(x) - 1 - image.row_order, first + image.row_order))
        first += sum(rows * columns for rows, columns in image.patch_grids) // merge_size**2
    return torch.cat((x, separators.to(x.dtype))).index_select(
        0, torch.from_numpy(np.concatenate(indices)).to(x.device)
    )


class VisionProjector(nn.Module):
    """Two-layer MLP from the width of the vision tower to that of the text model."""

    def __init__(self, in_features: int, out_features: int, *, activation: str = "gelu", bias: bool = True) -> None:
        super().__init__()
        self.up = Linear(in_features, out_features, bias=bias, activation=activation)
        self.down = Linear(out_features, out_features, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x))  # type: ignore[no-any-return]


class ProjectedTower(VisionTower):
    """Encode tiles of one size and project them by one linear layer.

    Squares of `merge_size` patches per side become one token.
    """

    def __init__(self, encoder: Backbone, out_size: int, *, bias: bool, merge_size: int = 1) -> None:
        super().__init__()
        self.encoder = encoder
        self.merge_size = merge_size
        self.projection = Linear(encoder.spec.hidden_size * merge_size**2, out_size, bias=bias)

    def forward(self, images: PackedImages) -> VisionFeatures:
        grids = patch_grids(images)
        states = self.encoder(pack_patches(images.patches, [rows * columns for rows, columns in grids]))
        return VisionFeatures(self.projection(merge_patches(states, grids[0], self.merge_size)))


def encode_patches(encoder: Backbone, images: PackedImages) -> Tensor:
    """Return the CLIP states of all tiles without their CLS tokens: [patches, hidden]."""
    lengths = [rows * columns + 1 for rows, columns in patch_grids(images)]
    states: Tensor = encoder(pack_patches(images.patches, lengths))
    return states.view(len(lengths), -1, states.shape[-1])[:, 1:].flatten(0, 1)


class LlavaNextTower(VisionTower):
    """Encode the tiles of an image with CLIP; a learned row ends every line of patches."""

    def __init__(self, encoder: Backbone, out_size: int, *, activation: str, bias: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.projector = VisionProjector(encoder.spec.hidden_size, out_size, activation=activation, bias=bias)
        self.new_line = nn.Parameter(torch.empty(out_size))

    def forward(self, images: PackedImages) -> VisionFeatures:
        rows = self.projector(encode_patches(self.encoder, images))
        return VisionFeatures(arrange_rows(rows, self.new_line[None], images))


class Phi3VisionTower(VisionTower):
    """Encode tiles with CLIP and merge squares of patches into one row each, with learned rows between them."""

    def __init__(self, encoder: Backbone, out_size: int, merge_size: int) -> None:
        super().__init__()
        width = encoder.spec.hidden_size * merge_size**2
        self.merge_size = merge_size
        self.encoder = encoder
        self.between = nn.Parameter(torch.empty(2, width))  # after each row, and between tiles and global image
        self.projector = VisionProjector(width, out_size)

    def forward(self, images: PackedImages) -> VisionFeatures:
        squares = merge_patches(encode_patches(self.encoder, images), patch_grids(images)[0], self.merge_size)
        return VisionFeatures(self.projector(arrange_rows(squares, self.between, images, self.merge_size)))


class NemotronVisionTower(VisionTower):
    """Encode tiles with SigLIP and merge squares of patches into one row each."""

    def __init__(self, encoder: Backbone, out_size: int, merge_size: int) -> None:
        super().__init__()
        width = encoder.spec.hidden_size * merge_size**2
        self.merge_size = merge_size
        self.encoder = encoder
        self.norm = LayerNorm(width, 1e-5)
        self.projector = VisionProjector(width, out_size)

    def forward(self, images: PackedImages) -> VisionFeatures:
        grids = patch_grids(images)
        states = self.encoder(pack_patches(images.patches, [rows * columns for rows, columns in grids]))
        return VisionFeatures(self.projector(self.norm(merge_patches(states, grids[0], self.merge_size))))
