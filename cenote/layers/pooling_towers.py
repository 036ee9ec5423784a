"""Vision towers that pool an image into one row: by a CLS token or by attention pooling."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cenote.layers.backbone import Backbone, VisionFeatures, VisionTower, build_mlp
from cenote.layers.linear import Linear
from cenote.layers.norm import make_norm
from cenote.layers.spec import BackboneSpec
from cenote.layers.vision import pack_patches, patch_grids, patch_positions
from cenote.packed_batch import PackedBatch, PackedImages


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
