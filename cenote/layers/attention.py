"""Self-attention over a packed batch: projections, head norms, rotary; a kernel does the rest."""

from __future__ import annotations

from torch import Tensor, nn

from cenote.batch import PackedBatch
from cenote.kernels.attention import choose
from cenote.layers.linear import Linear
from cenote.layers.norm import RMSNorm
from cenote.layers.positions import Turn, rotate
from cenote.layers.spec import BackboneSpec


class Attention(nn.Module):
    def __init__(self, spec: BackboneSpec, layer: int) -> None:
        super().__init__()
        self.head_dim = spec.size_per_head
        self.heads = (spec.num_heads, spec.kv_heads, spec.kv_heads)  # of query, key, value
        self.widths = [count * self.head_dim for count in self.heads]
        self.causal = spec.causal
        self.window = spec.window if spec.is_local(layer) else None
        self.scale = self.head_dim**-0.5
        self.qkv = Linear(spec.hidden_size, sum(self.widths), bias=spec.qkv_bias)
        self.out = Linear(self.widths[0], spec.hidden_size, bias=spec.out_bias)
        self.query_norm = RMSNorm(self.head_dim, spec.norm_eps) if spec.qk_norm else None
        self.key_norm = RMSNorm(self.head_dim, spec.norm_eps) if spec.qk_norm else None

    def forward(self, x: Tensor, batch: PackedBatch, turn: Turn | None) -> Tensor:
        parts = self.qkv(x).split(self.widths, dim=-1)
        query, key, value = (
            part.unflatten(-1, (heads, self.head_dim)) for part, heads in zip(parts, self.heads, strict=True)
        )
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if turn is not None:
            query, key = rotate(query, turn), rotate(key, turn)
        mixed = choose(query)(query, key, value, batch, causal=self.causal, window=self.window, scale=self.scale)
        return self.out(mixed.flatten(-2))  # type: ignore[no-any-return]
