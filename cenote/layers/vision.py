"""Towers that read images: patches laid end to end, every image (or tile of one) a sequence of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor, nn

from cenote.layers.linear import Linear
from cenote.layers.norm import LayerNorm
from cenote.layers.spec import BackboneSpec
from cenote.packed_batch import PackedBatch, PackedImages

Grid = tuple[int, int]  # rows and columns of patches


class PatchEmbedding(nn.Module):
    """A linear layer over the numbers of a patch; a convolution whose steps are as long as it is wide does the same."""

    def __init__(self, spec: BackboneSpec, patch_dim: int, *, bias: bool = True) -> None:
        super().__init__()
        self.patches = Linear(patch_dim, spec.hidden_size, bias=bias)

    def forward(self, batch: PackedBatch) -> Tensor:
        assert batch.inputs_embeds is not None, "patches come as features"
        return self.patches(batch.inputs_embeds)  # type: ignore[no-any-return]


class PatchMerger(nn.Module):
    """The states of neighbouring patches, laid side by side, become one row for the text half."""

    def __init__(self, size: int, merge_size: int, out_size: int, norm_eps: float | None = None) -> None:
        """With a `norm_eps`, what lies side by side is normed first."""
        super().__init__()
        self.width = size * merge_size**2
        self.norm = None if norm_eps is None else LayerNorm(self.width, norm_eps)
        self.up = Linear(self.width, self.width, bias=True, activation="gelu")
        self.down = Linear(self.width, out_size, bias=True)

    def forward(self, states: Tensor) -> Tensor:
        rows = states.reshape(-1, self.width)
        return self.down(self.up(rows if self.norm is None else self.norm(rows)))  # type: ignore[no-any-return]


def conv_to_linear(stored: Tensor) -> Tensor:
    """The weight of a convolution over patches as that of the linear layer; a bias is the same for both."""
    return stored.flatten(1) if stored.dim() > 1 else stored


def conv3d_to_linear(stored: Tensor) -> Tensor:
    """The same of one that reaches over frames of a film too: those of a still image are all alike."""
    return stored.float().sum(2).flatten(1) if stored.dim() > 1 else stored


def patch_grids(images: PackedImages) -> list[Grid]:
    """Of every tile of every image, in the order of the patches."""
    return [grid for picture in images.images for grid in picture.patch_grids]


def pack_patches(patches: Tensor, lengths: Sequence[int], mrope_positions: Tensor | None = None) -> PackedBatch:
    """Patches as the batch that a backbone reads: one sequence for every so many, and the places of the patches."""
    device, offsets = patches.device, np.array([*accumulate(lengths, initial=0)])
    # there may be thousands of windows: no step is taken for each
    counted = torch.from_numpy(np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)).to(device)
    return PackedBatch(
        token_ids=counted,  # nobody looks them up; they say how many there are
        positions=counted,
        cu_seqlens=torch.from_numpy(offsets).to(device),
        seq_lens_cpu=tuple(lengths),
        inputs_embeds=patches,
        mrope_positions=mrope_positions,
    )


def patch_positions(grids: Sequence[Grid], merge_size: int = 1) -> Tensor:
    """[2, patches]: row and column of every patch. With blocks, those of a square of block * block are neighbours."""
    return torch.cat([_grid_positions(rows, columns, merge_size) for rows, columns in grids], dim=1)


@lru_cache(maxsize=64)  # most images of a collection have one of few sizes
def _grid_positions(rows: int, columns: int, merge_size: int) -> Tensor:
    both = torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"))
    blocks = both.reshape(2, rows // merge_size, merge_size, columns // merge_size, merge_size)
    return blocks.transpose(2, 3).flatten(1)
