"""Attention whose keys and values unfold from one short vector per token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.kernels.attention import attend
from cenote.layers.linear import Linear
from cenote.layers.norm import RMSNorm
from cenote.layers.rotary import PositionInfo, apply_rotary
from cenote.layers.spec import BackboneSpec
from cenote.packed_batch import PackedBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttentionSpec:
    """The sizes of a head's parts, and of the vectors that they unfold from."""

    qk_nope_head_dim: int  # of queries and keys, what does not turn with the position
    qk_rope_head_dim: int
    v_head_dim: int
    kv_lora_rank: int  # what keys and values come from
    q_lora_rank: int | None  # what queries come from; the state itself when unset
    bias: bool


class LatentAttention(nn.Module):
    """Attention to keys and values that unfold from a latent vector; what turns of a key is the same in every head."""

    def __init__(self, spec: BackboneSpec, latent_spec: LatentAttentionSpec) -> None:
        super().__init__()
        self.num_heads, self.causal, self.scale = spec.num_heads, spec.causal, spec.scale
        self.qk_nope_head_dim, self.qk_rope_head_dim, self.v_head_dim = (
            latent_spec.qk_nope_head_dim,
            latent_spec.qk_rope_head_dim,
            latent_spec.v_head_dim,
        )
        width, query = self.num_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim), latent_spec.q_lora_rank
        self.down_sizes = [query or width, latent_spec.kv_lora_rank, self.qk_rope_head_dim]
        self.down = Linear(spec.hidden_size, sum(self.down_sizes), bias=latent_spec.bias)
        self.query_norm = RMSNorm(query, 1e-6) if query else None
        self.query_up = Linear(query, width, bias=False) if query else None
        self.latent_norm = RMSNorm(latent_spec.kv_lora_rank, 1e-6)
        self.latent_up = Linear(
            latent_spec.kv_lora_rank, self.num_heads * (self.qk_nope_head_dim + self.v_head_dim), bias=False
        )
        self.out = Linear(self.num_heads * self.v_head_dim, spec.hidden_size, bias=latent_spec.bias)

    def forward(self, x: Tensor, batch: PackedBatch, position_info: PositionInfo) -> Tensor:
        query, latent, turned = self.down(x).split(self.down_sizes, dim=-1)
        if self.query_norm is not None and self.query_up is not None:
            query = self.query_up(self.query_norm(query))
        query, to_turn = query.unflatten(-1, (self.num_heads, -1)).split(
            [self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1
        )
        still = self.latent_up(self.latent_norm(latent)).unflatten(-1, (self.num_heads, -1))
        key, value = still.split([self.qk_nope_head_dim, self.v_head_dim], dim=-1)
        assert position_info.cos_sin is not None and self.scale is not None
        turned = apply_rotary(turned[:, None], position_info.cos_sin).expand(-1, self.num_heads, -1)
        query, key = (
            torch.cat((query, apply_rotary(to_turn, position_info.cos_sin)), dim=-1),
            torch.cat((key, turned), dim=-1),
        )
        # kernels know one head size: values get zeros up to that of the keys, which come out as zeros
        value = F.pad(value, (0, key.shape[-1] - self.v_head_dim))
        mixed = attend(query, key, value, batch, causal=self.causal, window=None, scale=self.scale)
        return self.out(mixed[..., : self.v_head_dim].flatten(-2))  # type: ignore[no-any-return]
