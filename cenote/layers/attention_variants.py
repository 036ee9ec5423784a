"""Attention that computes something more than `Attention`: clipped, scaled by position, normalized or gated."""

from __future__ import annotations

import torch
from torch import Tensor

from cenote.layers.attention import Attention
from cenote.layers.linear import Linear
from cenote.layers.norm import make_norm
from cenote.layers.rotary import PositionInfo, apply_rotary
from cenote.layers.spec import BackboneSpec
from cenote.packed_batch import PackedBatch


class ClippedAttention(Attention):
    """Attention that clamps queries, keys and values to [-limit, limit] (`clip_qkv`)."""

    def __init__(self, spec: BackboneSpec, layer: int, limit: float) -> None:
        super().__init__(spec, layer)
        self.limit = limit

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (part.clamp(-self.limit, self.limit) for part in super().project(x))
        return query, key, value


class PositionScaledAttention(Attention):
    """Attention whose queries grow with their position: 1 + beta * log(1 + floor(position / trained length))."""

    def __init__(self, spec: BackboneSpec, layer: int, beta: float, trained_length: int) -> None:
        super().__init__(spec, layer)
        self.beta, self.trained_length = beta, trained_length

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, batch: PackedBatch, position_info: PositionInfo
    ) -> Tensor:
        steps = (batch.positions // self.trained_length).float()
        scale = (1 + self.beta * torch.log1p(steps)).to(query.dtype)
        return super().attend(query * scale[:, None, None], key, value, batch, position_info)


class AttentionWithOutputNorm(Attention):
    """Add the input and normalise inside the attention; the block then adds the input again."""

    def __init__(self, spec: BackboneSpec, layer: int) -> None:
        super().__init__(spec, layer)
        self.out_norm = make_norm(spec)

    def forward(self, x: Tensor, batch: PackedBatch, position_info: PositionInfo) -> Tensor:
        return self.out_norm(x + super().forward(x, batch, position_info))  # type: ignore[no-any-return]


class GatedAttention(Attention):
    """Attention with an output gate per head; `qkv` stores the gate of a head after its query."""

    def __init__(self, spec: BackboneSpec, layer: int) -> None:
        super().__init__(spec, layer)
        queries, keys, values = self.qkv_sizes
        self.projection_sizes = [2 * queries, keys, values]
        self.qkv = Linear(spec.hidden_size, sum(self.projection_sizes), bias=spec.qkv_bias)

    def forward(self, x: Tensor, batch: PackedBatch, position_info: PositionInfo) -> Tensor:
        assert self.query_norm is not None and self.key_norm is not None and position_info.cos_sin is not None
        query, key, value = self.qkv(x).split(self.projection_sizes, dim=-1)
        query, gate = query.unflatten(-1, (-1, 2, self.head_dim)).unbind(-2)
        key, value = (part.unflatten(-1, (-1, self.head_dim)) for part in (key, value))
        query, key = (
            apply_rotary(self.query_norm(query), position_info.cos_sin),
            apply_rotary(self.key_norm(key), position_info.cos_sin),
        )
        attended = self.attend(query, key, value, batch, position_info) * gate.sigmoid()
        return self.out(attended.flatten(-2))  # type: ignore[no-any-return]
