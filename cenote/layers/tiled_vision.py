"""Towers that read an image in tiles: patches merged, and rows put where the image's tokens want them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from cenote.layers.backbone import Backbone
from cenote.layers.linear import Linear
from cenote.layers.vision import Grid, pack_patches, patch_grids
from cenote.packed_batch import PackedImages


def merge_patches(x: Tensor, grid: Grid, merge_size: int) -> Tensor:
    """[patches / block**2, hidden * block**2]: squares of patches as one row each; every tile has the same grid."""
    rows, columns = grid
    squares = x.view(-1, rows // merge_size, merge_size, columns // merge_size, merge_size, x.shape[-1])
    return squares.transpose(2, 3).reshape(-1, merge_size * merge_size * x.shape[-1])


def arrange_rows(x: Tensor, separators: Tensor, images: PackedImages, merge_size: int = 1) -> Tensor:
    """For every token of the images a row of theirs, or one of what stands `between` them, as their readers say."""
    chosen, first = [], 0
    for picture in images.images:
        assert picture.row_order is not None, "the reader of such a model gives an order"
        chosen.append(np.where(picture.row_order < 0, len(x) - 1 - picture.row_order, first + picture.row_order))
        first += sum(rows * columns for rows, columns in picture.patch_grids) // merge_size**2
    return torch.cat((x, separators.to(x.dtype))).index_select(0, torch.from_numpy(np.concatenate(chosen)).to(x.device))


class VisionProjector(nn.Module):
    """From what a tower sees to what the text half reads: two layers and an activation between them."""

    def __init__(self, in_features: int, out_features: int, *, activation: str = "gelu", bias: bool = True) -> None:
        super().__init__()
        self.up = Linear(in_features, out_features, bias=bias, activation=activation)
        self.down = Linear(out_features, out_features, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x))  # type: ignore[no-any-return]


def encode_patches(encoder: Backbone, images: PackedImages) -> Tensor:
    """[patches, hidden]: what CLIP makes of tiles, without the token before the patches of each."""
    lengths = [rows * columns + 1 for rows, columns in patch_grids(images)]
    states: Tensor = encoder(pack_patches(images.patches, lengths))
    return states.view(len(lengths), -1, states.shape[-1])[:, 1:].flatten(0, 1)
