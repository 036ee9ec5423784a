"""Self-attention over a packed batch: projections, QK norms and rotary embedding around an attention kernel."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cenote.kernels.attention import attend
from cenote.kernels.rotary import select_qk_norm_rope
from cenote.layers.linear import Linear
from cenote.layers.norm import RMSNorm, make_norm
from cenote.layers.rotary import CosSin, PositionInfo, apply_rotary
from cenote.layers.spec import BackboneSpec
from cenote.packed_batch import PackedBatch


class Attention(nn.Module):
    def __init__(self, spec: BackboneSpec, layer: int) -> None:
        super().__init__()
        self.head_dim = spec.head_size
        self.num_qkv_heads = (
            spec.num_heads,
            spec.num_key_value_heads,
            spec.num_key_value_heads,
        )  # query, key, value
        self.qkv_sizes = [count * self.head_dim for count in self.num_qkv_heads]
        self.projection_sizes = self.qkv_sizes  # rows of `qkv`; more if it computes something else for every head
        self.causal = spec.causal
        self.window = spec.window if spec.is_local(layer) else None
        self.scale = spec.attention_scale(layer)
        self.softcap = spec.softcap
        self.qkv = Linear(spec.hidden_size, sum(self.qkv_sizes), bias=spec.qkv_bias)
        self.out = Linear(self.qkv_sizes[0], spec.hidden_size, bias=spec.out_bias)
        self.has_full_width_qk_norm = spec.qk_norm == "width"
        query_width, key_width = self.qkv_sizes[:2] if self.has_full_width_qk_norm else (self.head_dim, self.head_dim)
        self.query_norm = make_norm(spec, query_width) if spec.qk_norm else None
        self.key_norm = make_norm(spec, key_width) if spec.qk_norm else None
        # [heads], logits of attention sinks
        self.sinks = nn.Parameter(torch.empty(spec.num_heads)) if spec.has_sinks else None

    def forward(self, x: Tensor, batch: PackedBatch, position_info: PositionInfo) -> Tensor:
        attn_out = self.attend(*self.project_qkv_rotary(x, position_info.cos_sin), batch, position_info)
        return self.out(attn_out.flatten(-2))  # type: ignore[no-any-return]

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, batch: PackedBatch, position_info: PositionInfo
    ) -> Tensor:
        """Return the attention output [tokens, heads, d]."""
        return attend(
            query,
            key,
            value,
            batch,
            causal=self.causal,
            window=self.window,
            scale=self.scale,
            softcap=self.softcap,
            bias=position_info.bias,
            sinks=self.sinks,
        )

    def project_qkv_rotary(self, x: Tensor, cos_sin: CosSin | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values after QK norm and rotary embedding: [tokens, heads, d] each."""
        if cos_sin is None:
            return self.project(x)
        qk_norm_rope_ = select_qk_norm_rope(x) if self.can_fuse_qk_norm_rope and not cos_sin.interleaved else None
        if qk_norm_rope_ is None:
            query, key, value = self.project(x)
            return apply_rotary(query, cos_sin), apply_rotary(key, cos_sin), value
        heads = self.qkv(x).unflatten(-1, (sum(self.num_qkv_heads), self.head_dim))
        num_queries, num_keys = self.num_qkv_heads[:2]
        query_norm, key_norm = self.query_norm, self.key_norm
        norms = () if query_norm is None or key_norm is None else (query_norm.weight, key_norm.weight, query_norm.eps)
        qk_norm_rope_(heads[:, : num_queries + num_keys], cos_sin.cos, cos_sin.sin, num_queries, *norms)
        query, key, value = heads.split(self.num_qkv_heads, dim=1)
        return query, key, value

    @property
    def can_fuse_qk_norm_rope(self) -> bool:
        """Whether the fused kernel supports the QK norms and projections of this layer."""
        norms = (self.query_norm, self.key_norm)
        are_supported = all(norm is None or (isinstance(norm, RMSNorm) and not norm.offset) for norm in norms)
        return are_supported and not self.has_full_width_qk_norm and type(self).project is Attention.project

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values after QK norm, before rotary embedding: [tokens, heads, d] each."""
        query, key, value = self.qkv(x).split(self.qkv_sizes, dim=-1)
        if self.query_norm is not None and self.key_norm is not None and self.has_full_width_qk_norm:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key, value = (
            part.unflatten(-1, (heads, self.head_dim))
            for part, heads in zip((query, key, value), self.num_qkv_heads, strict=True)
        )
        if self.query_norm is not None and self.key_norm is not None and not self.has_full_width_qk_norm:
            query, key = self.query_norm(query), self.key_norm(key)
        return query, key, value


class NormedAttention(Attention):
    """Attention with a norm before the output projection, as in EVA-02."""

    def __init__(self, spec: BackboneSpec, layer: int) -> None:
        super().__init__(spec, layer)
        self.norm = make_norm(spec, self.qkv_sizes[0])

    def forward(self, x: Tensor, batch: PackedBatch, position_info: PositionInfo) -> Tensor:
        attn_out = self.attend(*self.project_qkv_rotary(x, position_info.cos_sin), batch, position_info)
        return self.out(self.norm(attn_out.flatten(-2)))  # type: ignore[no-any-return]
