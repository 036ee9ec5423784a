"""Multi-head latent attention (MLA): keys and values are projected from a low-rank latent vector per token."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.kernels.attention import attend
from cenote.layers.linear import Linear
from cenote.layers.norm import RMSNorm
from cenote.layers.rotary import PositionInfo, apply_rotary
from cenote.layers.spec import BackboneSpec, LatentAttentionSpec
from cenote.packed_batch import PackedBatch


class LatentAttention(nn.Module):
    """Multi-head latent attention; the rotary part of a key is shared by all heads."""

    def __init__(self, spec: BackboneSpec, latent_spec: LatentAttentionSpec) -> None:
        super().__init__()
        self.num_heads, self.causal, self.scale = spec.num_heads, spec.causal, spec.scale
        self.qk_nope_head_dim, self.qk_rope_head_dim, self.v_head_dim = (
            latent_spec.qk_nope_head_dim,
            latent_spec.qk_rope_head_dim,
            latent_spec.v_head_dim,
        )
        width, query_rank = self.num_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim), latent_spec.q_lora_rank
        self.down_sizes = [query_rank or width, latent_spec.kv_lora_rank, self.qk_rope_head_dim]
        self.down = Linear(spec.hidden_size, sum(self.down_sizes), bias=latent_spec.bias)
        self.query_norm = RMSNorm(query_rank, 1e-6) if query_rank else None
        self.query_up = Linear(query_rank, width, bias=False) if query_rank else None
        self.latent_norm = RMSNorm(latent_spec.kv_lora_rank, 1e-6)
        self.latent_up = Linear(
            latent_spec.kv_lora_rank, self.num_heads * (self.qk_nope_head_dim + self.v_head_dim), bias=False
        )
        self.out = Linear(self.num_heads * self.v_head_dim, spec.hidden_size, bias=latent_spec.bias)

    def forward(self, x: Tensor, batch: PackedBatch, position_info: PositionInfo) -> Tensor:
        query, latent, key_rope = self.down(x).split(self.down_sizes, dim=-1)
        if self.query_norm is not None and self.query_up is not None:
            query = self.query_up(self.query_norm(query))
        query, query_rope = query.unflatten(-1, (self.num_heads, -1)).split(
            [self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1
        )
        key_value = self.latent_up(self.latent_norm(latent)).unflatten(-1, (self.num_heads, -1))
        key, value = key_value.split([self.qk_nope_head_dim, self.v_head_dim], dim=-1)
        assert position_info.cos_sin is not None and self.scale is not None
        key_rope = apply_rotary(key_rope[:, None], position_info.cos_sin).expand(-1, self.num_heads, -1)
        query, key = (
            torch.cat((query, apply_rotary(query_rope, position_info.cos_sin)), dim=-1),
            torch.cat((key, key_rope), dim=-1),
        )
        # kernels need one head size: pad values with zeros to that of the keys; the padding is cut off the output
        value = F.pad(value, (0, key.shape[-1] - self.v_head_dim))
        attn_out = attend(query, key, value, batch, causal=self.causal, window=None, scale=self.scale)
        return self.out(attn_out[..., : self.v_head_dim].flatten(-2))  # type: ignore[no-any-return]
