"""Transformers over the patches of an image or tile: embeddings of patches, and the encoders that have them."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from cenote.layers.attention import Attention, NormedAttention
from cenote.layers.backbone import Backbone, EmbeddingTable
from cenote.layers.mlp import NormedGatedMLP
from cenote.layers.norm import Norm, make_norm
from cenote.layers.spec import BackboneSpec
from cenote.layers.vision import PatchEmbedding
from cenote.packed_batch import PackedBatch


class FixedPatchEmbedding(PatchEmbedding):
    """Patch embedding for images of one size, with learned positions."""

    def __init__(self, spec: BackboneSpec, patch_dim: int) -> None:
        super().__init__(spec, patch_dim)
        self.positions = EmbeddingTable(spec.num_learned_positions, spec.hidden_size)

    def forward(self, batch: PackedBatch) -> Tensor:
        return super().forward(batch) + self.positions(batch.positions)  # type: ignore[no-any-return]


class InterpolatedPatchEmbedding(FixedPatchEmbedding):
    """Patch embedding for images of any size: the square position table is interpolated to each grid."""

    def forward(self, batch: PackedBatch) -> Tensor:
        assert batch.mrope_positions is not None, "patches need mrope_positions: their row and column"
        # the row and column of the last patch of every image give the size of its grid
        last = batch.mrope_positions[:, batch.cu_seqlens[1:] - 1].T.tolist()
        side = int(self.positions.num_embeddings**0.5)
        square = self.positions.weight.float().T.reshape(1, -1, side, side)
        grids = [(row + 1, column + 1) for row, column in last]
        interpolated = {grid: _interpolate_positions(square, grid) for grid in set(grids)}
        patches = PatchEmbedding.forward(self, batch)
        return patches + torch.cat([interpolated[grid] for grid in grids]).to(patches.dtype)


class ClsPatchEmbedding(PatchEmbedding):
    """Patch embedding for images of one size with a CLS token before the patches."""

    def __init__(self, spec: BackboneSpec, patch_dim: int, *, bias: bool = False, has_norm: bool = True) -> None:
        super().__init__(spec, patch_dim, bias=bias)
        self.first = nn.Parameter(torch.empty(spec.hidden_size))
        self.positions = EmbeddingTable(spec.num_learned_positions, spec.hidden_size)
        self.norm = make_norm(spec) if has_norm else Norm()

    def forward(self, batch: PackedBatch) -> Tensor:
        patches = super().forward(batch)
        patches = patches.reshape(batch.num_seqs, -1, patches.shape[-1])
        rows = torch.cat((self.first.expand(batch.num_seqs, 1, -1), patches), dim=1).flatten(0, 1)
        return self.norm.add_and_norm(rows, self.positions(batch.positions), return_residual=False)[1]


def make_patch_encoder(spec: BackboneSpec, patch_dim: int, *, interpolates_positions: bool = False) -> Backbone:
    """Return an encoder whose sequences are the patches of an image or tile, as in SigLIP."""
    embedding = InterpolatedPatchEmbedding if interpolates_positions else FixedPatchEmbedding
    return Backbone(spec, partial(embedding, patch_dim=patch_dim))


def make_cls_encoder(spec: BackboneSpec, patch_dim: int) -> Backbone:
    """Return an encoder whose sequences are a CLS embedding and the patches of an image or tile, as in CLIP."""
    return Backbone(spec, partial(ClsPatchEmbedding, patch_dim=patch_dim))


def make_eva_encoder(
    spec: BackboneSpec, patch_dim: int, *, patch_bias: bool, mlp_norm_eps: float, norms_attention: bool
) -> Backbone:
    """Return EVA-02: an encoder with a CLS embedding whose MLPs, and attention if it says so, have an inner norm."""
    return Backbone(
        spec,
        partial(ClsPatchEmbedding, patch_dim=patch_dim, bias=patch_bias, has_norm=False),
        NormedAttention if norms_attention else Attention,
        lambda spec, _: NormedGatedMLP(spec, mlp_norm_eps),
    )


def _interpolate_positions(square: Tensor, grid: tuple[int, int]) -> Tensor:
    """Resize the position table to a grid: [rows * columns, hidden]."""
    return nn.functional.interpolate(square, size=grid, mode="bilinear", antialias=True)[0].flatten(1).T
