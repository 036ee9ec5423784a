"""Building blocks of vision towers: patches are packed, with one sequence per image or tile."""

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
    """Linear layer over the pixels of a patch; equal to a convolution whose stride is its kernel size."""

    def __init__(self, spec: BackboneSpec, patch_dim: int, *, bias: bool = True) -> None:
        super().__init__()
        self.patches = Linear(patch_dim, spec.hidden_size, bias=bias)

    def forward(self, batch: PackedBatch) -> Tensor:
        assert batch.inputs_embeds is not None, "patches are passed as inputs_embeds"
        return self.patches(batch.inputs_embeds)  # type: ignore[no-any-return]


class PatchMerger(nn.Module):
    """Merge the concatenated states of adjacent patches into one row for the text model."""

    def __init__(self, size: int, merge_size: int, out_size: int, norm_eps: float | None = None) -> None:
        """With `norm_eps`, the concatenated states are normalized first."""
        super().__init__()
        self.width = size * merge_size**2
        self.norm = None if norm_eps is None else LayerNorm(self.width, norm_eps)
        self.up = Linear(self.width, self.width, bias=True, activation="gelu")
        self.down = Linear(self.width, out_size, bias=True)

    def forward(self, states: Tensor) -> Tensor:
        rows = states.reshape(-1, self.width)
        return self.down(self.up(rows if self.norm is None else self.norm(rows)))  # type: ignore[no-any-return]


def patch_grids(images: PackedImages) -> list[Grid]:
    """Return the grid of every tile of every image, in the order of the patches."""
    return [grid for image in images.images for grid in image.patch_grids]


def pack_patches(patches: Tensor, lengths: Sequence[int], mrope_positions: Tensor | None = None) -> PackedBatch:
    """Pack patches into a batch for a backbone, with sequences of these lengths."""
    device, offsets = patches.device, np.array([*accumulate(lengths, initial=0)])
    # vectorized: there may be thousands of windows
    positions = torch.from_numpy(np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)).to(device)
    return PackedBatch(
        token_ids=positions,  # not looked up; only their number matters
        positions=positions,
        cu_seqlens=torch.from_numpy(offsets).to(device),
        seq_lens_cpu=tuple(lengths),
        inputs_embeds=patches,
        mrope_positions=mrope_positions,
    )


def patch_positions(grids: Sequence[Grid], merge_size: int = 1) -> Tensor:
    """Return the row and column of every patch: [2, patches]; patches of a merge_size square are adjacent."""
    return torch.cat([_grid_positions(rows, columns, merge_size) for rows, columns in grids], dim=1)


@lru_cache(maxsize=64)  # images of a collection have few distinct sizes
def _grid_positions(rows: int, columns: int, merge_size: int) -> Tensor:
    positions = torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"))
    blocks = positions.reshape(2, rows // merge_size, merge_size, columns // merge_size, merge_size)
    return blocks.transpose(2, 3).flatten(1)
