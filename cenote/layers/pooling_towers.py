"""Vision towers that pool an image into one row: by a CLS token or by attention pooling."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cenote.layers.backbone import Backbone, EmbeddingTable, VisionFeatures, VisionTower, build_mlp
from cenote.layers.linear import Linear
from cenote.layers.norm import Norm, make_norm
from cenote.layers.spec import BackboneSpec
from cenote.layers.vision import PatchEmbedding, pack_patches, patch_grids, patch_positions
from cenote.packed_batch import PackedBatch, PackedImages


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


class ClsTokenTower(VisionTower):
    """Pool by the CLS token, which is moved after the patches of its image; `out_size` is None without a projection."""

    def __init__(self, encoder: Backbone, out_size: int | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        size = encoder.spec.hidden_size
        self.projection = nn.Identity() if out_size is None else Linear(size, out_size, bias=False)

    def forward(self, images: PackedImages) -> VisionFeatures:
        batch = pack_cls_patches(images)
        states = self.projection(self.encoder(batch))
        return VisionFeatures(states.unflatten(0, (batch.num_seqs, -1)).roll(-1, dims=1).flatten(0, 1))


class AttentionPoolingTower(VisionTower):
    """Pool by attention with a learned query; the pooled row follows the patches of its image."""

    def __init__(self, encoder: Backbone) -> None:
        super().__init__()
        self.encoder = encoder
        self.pool = AttentionPooling(encoder.spec)

    def forward(self, images: PackedImages) -> VisionFeatures:
        grids = patch_grids(images)
        lengths = [rows * columns for rows, columns in grids]
        positions = patch_positions(grids).to(images.patches.device)
        batch = pack_patches(images.patches, lengths, positions)
        states = self.encoder(batch)
        pooled = self.pool(states, batch)
        pairs = zip(states.split(lengths), pooled.split(1), strict=True)
        return VisionFeatures(torch.cat([rows for pair in pairs for rows in pair]))


class PooledResidualTower(AttentionPoolingTower):
    """Add the MLP of an attention pooling to every state; the CLS token is moved after the patches of its image."""

    def forward(self, images: PackedImages) -> VisionFeatures:
        batch = pack_cls_patches(images)
        states = self.encoder(batch)
        pooled = self.pool.mlp(self.pool.norm(self.pool.attend(states, batch)))
        return VisionFeatures((states.unflatten(0, (len(pooled), -1)) + pooled[:, None]).roll(-1, dims=1).flatten(0, 1))


class AttentionPooling(nn.Module):
    """Attention of one learned query to all rows of each sequence: [tokens, hidden] -> [num_seqs, hidden]."""

    def __init__(self, spec: BackboneSpec) -> None:
        super().__init__()
        size = spec.hidden_size
        self.num_heads, self.head_dim = spec.num_heads, spec.head_size
        self.probe = nn.Parameter(torch.empty(size))
        self.query = Linear(size, size, bias=True)
        self.key_value = Linear(size, 2 * size, bias=True)
        self.out = Linear(size, size, bias=True)
        self.norm = make_norm(spec)
        self.mlp = build_mlp(spec, 0)

    def forward(self, states: Tensor, batch: PackedBatch) -> Tensor:
        x = self.attend(states, batch)
        return x + self.mlp(self.norm(x))  # type: ignore[no-any-return]

    def attend(self, states: Tensor, batch: PackedBatch) -> Tensor:
        """Return the attention output of each sequence, before the MLP."""
        query = self.query(self.probe[None]).float().unflatten(-1, (self.num_heads, self.head_dim))
        key_value = self.key_value(states).float().unflatten(-1, (2, self.num_heads, self.head_dim))
        key, value = key_value.unbind(1)  # [tokens, heads, d] each
        scores = (key * query).sum(-1) * self.head_dim**-0.5
        max_scores = torch.segment_reduce(scores, "max", offsets=batch.cu_seqlens)
        weights = (scores - max_scores[batch.segment_ids]).exp()
        total = torch.segment_reduce(weights, "sum", offsets=batch.cu_seqlens)
        weighted = torch.segment_reduce((weights[..., None] * value).flatten(1), "sum", offsets=batch.cu_seqlens)
        pooled = weighted.view(-1, self.num_heads, self.head_dim) / total[..., None]
        return self.out(pooled.flatten(1).to(states.dtype))  # type: ignore[no-any-return]


def pack_cls_patches(images: PackedImages) -> PackedBatch:
    """Pack images of one size with a CLS token first; its row and column are 0, a position that does not rotate it."""
    grids = patch_grids(images)
    positions = nn.functional.pad(patch_positions(grids[:1]), (1, 0)).repeat(1, len(grids))
    lengths = [rows * columns + 1 for rows, columns in grids]
    return pack_patches(images.patches, lengths, positions.to(images.patches.device))


def _interpolate_positions(square: Tensor, grid: tuple[int, int]) -> Tensor:
    """Resize the position table to a grid: [rows * columns, hidden]."""
    return nn.functional.interpolate(square, size=grid, mode="bilinear", antialias=True)[0].flatten(1).T
