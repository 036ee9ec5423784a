"""Disentangled attention of DeBERTa: content and relative position have separate projections."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.kernels.activations import ACTIVATIONS
from cenote.kernels.eager_attention import MAX_SCORES
from cenote.layers.activation_names import resolve_activation
from cenote.layers.attention import Attention
from cenote.layers.backbone import Block, InputEmbedding, MixerFactory, build_mlp
from cenote.layers.norm import make_norm
from cenote.layers.rotary import PositionInfo
from cenote.layers.spec import BackboneSpec
from cenote.packed_batch import PackedBatch


class RelativeDistances:
    """Map of the distance between query and key to rows of the relative position table."""

    def __init__(self, max_distance: int, num_buckets: int = 0) -> None:
        self.max_distance = max_distance
        self.num_buckets = num_buckets  # 0: one row for every distance
        self.span = num_buckets or max_distance

    def table_rows(self, length: int) -> Tensor:
        """Return the rows [2 * length - 1], non-decreasing, for distances query - key from 1 - length to length - 1."""
        distance = torch.arange(1 - length, length)
        if self.num_buckets:
            # half of the buckets are for near distances, one each; the others grow logarithmically
            near = self.num_buckets // 2
            fraction = (distance.abs().clamp(min=1) / near).log() / torch.tensor((self.max_distance - 1) / near).log()
            far = (fraction * (near - 1)).ceil().long() + near
            distance = torch.where(distance.abs() <= near, distance, far * distance.sign())
        return torch.clamp(distance + self.span, 0, 2 * self.span - 1)


class DisentangledAttention(Attention):
    """Attention with content-to-position (c2p) and position-to-content (p2c) terms."""

    def __init__(
        self, spec: BackboneSpec, layer: int, *, distances: RelativeDistances, pos_att_types: Sequence[str]
    ) -> None:
        super().__init__(spec, layer)
        self.distances = distances
        shape = (2 * distances.span, self.qkv_sizes[0])
        self.position_key = nn.Parameter(torch.empty(shape)) if "c2p" in pos_att_types else None
        self.position_query = nn.Parameter(torch.empty(shape)) if "p2c" in pos_att_types else None

    def forward(self, x: Tensor, batch: PackedBatch, position_info: PositionInfo) -> Tensor:
        parts = self.project(x)
        rows = self.distances.table_rows(batch.max_seqlen)
        pieces, first_seq = [], 0
        for run in batch.equal_length_runs:
            used = rows[batch.max_seqlen - run.seq_len : batch.max_seqlen + run.seq_len - 1]
            max_seqs = max(
                1, MAX_SCORES // (self.num_qkv_heads[0] * run.seq_len * max(run.seq_len, int(used[-1] - used[0])))
            )
            for first in range(0, run.num_seqs, max_seqs):
                count = min(max_seqs, run.num_seqs - first)
                start = run.start + first * run.seq_len
                # [num_seqs, heads, seq_len, d], all of them views
                q, k, v = (
                    part[start : start + count * run.seq_len].view(count, run.seq_len, *part.shape[1:]).transpose(1, 2)
                    for part in parts
                )
                lens = (
                    None if batch.attended_lens_cpu is None else batch.attended_lens_cpu[first_seq : first_seq + count]
                )
                pieces.append(self._attend(q, k, v, used, lens).transpose(1, 2).flatten(0, 1))
                first_seq += count
        return self.out(torch.cat(pieces).flatten(-2))  # type: ignore[no-any-return]

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, rows: Tensor, attended_lens: Sequence[int] | None) -> Tensor:
        """Attend in blocks of queries, so that memory does not grow with the square of the length."""
        count, heads, length, size = q.shape
        first, last = int(rows[0]), int(rows[-1])  # the other rows are for distances that do not occur
        position_key, position_query = (
            None if table is None else table[first : last + 1].view(-1, heads, size).transpose(0, 1)
            for table in (self.position_key, self.position_query)
        )
        rows, keys = (rows - first).to(q.device), torch.arange(length, device=q.device)
        by_key = None if position_query is None else position_query @ k.mT  # [count, heads, distances, keys]
        block, blocks = max(1, MAX_SCORES // (count * heads * (length + last - first))), []
        for start in range(0, length, block):
            query = q[:, :, start : start + block]
            index = rows[keys[start : start + block, None] - keys + length - 1].expand(count, heads, -1, -1)
            by_distance = [] if position_key is None else [(query @ position_key.mT).gather(-1, index)]
            by_distance += [] if by_key is None else [by_key.gather(-2, index)]
            bias = by_distance[0] if len(by_distance) == 1 else by_distance[0].add_(by_distance[1])
            if attended_lens is not None:
                bias = bias.masked_fill(
                    keys >= torch.tensor(attended_lens, device=q.device)[:, None, None, None], -torch.inf
                )
            blocks.append(F.scaled_dot_product_attention(query, k, v, attn_mask=bias, scale=self.scale))
        return torch.cat(blocks, dim=2)


class EmbeddingWithConv(InputEmbedding):
    """Embeddings followed by the first layer, to whose output a convolution over the embeddings is added."""

    def __init__(
        self, spec: BackboneSpec, *, make_mixer: MixerFactory | None, kernel_size: int, groups: int, activation: str
    ) -> None:
        super().__init__(spec)
        size = spec.hidden_size
        self.layer = Block(spec, 0, make_mixer or Attention, build_mlp)
        self.convolution = nn.Conv1d(size, size, kernel_size, padding=(kernel_size - 1) // 2, groups=groups)
        self.convolved_norm = make_norm(spec)
        self.activation = ACTIVATIONS[resolve_activation(activation)]

    def forward(self, batch: PackedBatch) -> Tensor:
        x = super().forward(batch)
        convolved = []
        for run in batch.equal_length_runs:
            rows = x[run.start : run.start + run.num_seqs * run.seq_len].view(run.num_seqs, run.seq_len, -1)
            convolved.append(self.convolution(rows.mT).mT.flatten(0, 1))
        states, _ = self.layer(x, None, batch, PositionInfo())
        return self.convolved_norm.add_and_norm(states, self.activation(torch.cat(convolved)))[1]
