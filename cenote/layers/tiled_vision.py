"""Towers that read an image in tiles: patches merged, and rows put where the image's tokens want them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from cenote.layers.backbone import Backbone
from cenote.layers.linear import Linear
from cenote.layers.vision import Grid, grids_of, tower_batch
from cenote.packed_batch import PackedImages


def merged(x: Tensor, grid: Grid, block: int) -> Tensor:
    """[patches / block**2, hidden * block**2]: squares of patches as one row each; every tile has the same grid."""
    rows, columns = grid
    squares = x.view(-1, rows // block, block, columns // block, block, x.shape[-1])
    return squares.transpose(2, 3).reshape(-1, block * block * x.shape[-1])


def arranged(x: Tensor, between: Tensor, images: PackedImages, block: int = 1) -> Tensor:
    """For every token of the images a row of theirs, or one of what stands `between` them, as their readers say."""
    chosen, first = [], 0
    for picture in images.pictures:
        assert picture.order is not None, "the reader of such a model gives an order"
        chosen.append(np.where(picture.order < 0, len(x) - 1 - picture.order, first + picture.order))
        first += sum(rows * columns for rows, columns in picture.grids) // block**2
    return torch.cat((x, between.to(x.dtype))).index_select(0, torch.from_numpy(np.concatenate(chosen)).to(x.device))


class Projector(nn.Module):
    """From what a tower sees to what the text half reads: two layers and an activation between them."""

    def __init__(self, inputs: int, outputs: int, *, activation: str = "gelu", bias: bool = True) -> None:
        super().__init__()
        self.up = Linear(inputs, outputs, bias=bias, activation=activation)
        self.down = Linear(outputs, outputs, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x))  # type: ignore[no-any-return]


def patch_states(encoder: Backbone, images: PackedImages) -> Tensor:
    """[patches, hidden]: what CLIP makes of tiles, without the token before the patches of each."""
    lengths = [rows * columns + 1 for rows, columns in grids_of(images)]
    states: Tensor = encoder(tower_batch(images.patches, lengths))
    return states.view(len(lengths), -1, states.shape[-1])[:, 1:].flatten(0, 1)
