"""Self-attention over a packed batch: projections, norms, rotary; a kernel does the rest."""

from __future__ import annotations

from torch import Tensor, nn

from cenote.kernels.attention import attend
from cenote.kernels.rotary import turning
from cenote.layers.linear import Linear
from cenote.layers.norm import RMSNorm, norm
from cenote.layers.rotary import Place, Turn, rotate
from cenote.layers.spec import BackboneSpec
from cenote.packed_batch import PackedBatch


class Attention(nn.Module):
    def __init__(self, spec: BackboneSpec, layer: int) -> None:
        super().__init__()
        self.head_dim = spec.size_per_head
        self.heads = (spec.num_heads, spec.kv_heads, spec.kv_heads)  # of query, key, value
        self.widths = [count * self.head_dim for count in self.heads]
        self.causal = spec.causal
        self.window = spec.window if spec.is_local(layer) else None
        self.scale = self.head_dim**-0.5 if spec.scale is None else spec.scale
        self.softcap = spec.softcap
        self.qkv = Linear(spec.hidden_size, sum(self.widths), bias=spec.qkv_bias)
        self.out = Linear(self.widths[0], spec.hidden_size, bias=spec.out_bias)
        self.norms_width = spec.qk_norm == "width"
        query_width, key_width = self.widths[:2] if self.norms_width else (self.head_dim, self.head_dim)
        self.query_norm = norm(spec, query_width) if spec.qk_norm else None
        self.key_norm = norm(spec, key_width) if spec.qk_norm else None
        self.sinks: Tensor | None = None  # [heads], a weight that goes to no token; families that have it set it

    def forward(self, x: Tensor, batch: PackedBatch, place: Place) -> Tensor:
        mixed = self.attended(*self.turned(x, place.turn), batch, place)
        return self.out(mixed.flatten(-2))  # type: ignore[no-any-return]

    def attended(self, query: Tensor, key: Tensor, value: Tensor, batch: PackedBatch, place: Place) -> Tensor:
        """What every token finds: [tokens, heads, d]."""
        return attend(
            query,
            key,
            value,
            batch,
            causal=self.causal,
            window=self.window,
            scale=self.scale,
            softcap=self.softcap,
            bias=place.bias,
            sinks=self.sinks,
        )

    def turned(self, x: Tensor, turn: Turn | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, normed and turned to their positions: [tokens, heads, d] each."""
        if turn is None:
            return self.project(x)
        norm_and_turn_ = turning(x) if self.fusible and not turn.interleaved else None
        if norm_and_turn_ is None:
            query, key, value = self.project(x)
            return rotate(query, turn), rotate(key, turn), value
        heads = self.qkv(x).unflatten(-1, (sum(self.heads), self.head_dim))
        num_queries, num_keys = self.heads[:2]
        query_norm, key_norm = self.query_norm, self.key_norm
        norms = () if query_norm is None or key_norm is None else (query_norm.weight, key_norm.weight, query_norm.eps)
        norm_and_turn_(heads[:, : num_queries + num_keys], turn.cos, turn.sin, num_queries, *norms)
        query, key, value = heads.split(self.heads, dim=1)
        return query, key, value

    @property
    def fusible(self) -> bool:
        """Whether norms and turning are those that one kernel does together."""
        norms = (self.query_norm, self.key_norm)
        plain = all(norm is None or (isinstance(norm, RMSNorm) and not norm.offset) for norm in norms)
        return plain and not self.norms_width and type(self).project is Attention.project

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, normed but not yet turned: [tokens, heads, d] each."""
        query, key, value = self.qkv(x).split(self.widths, dim=-1)
        if self.query_norm is not None and self.key_norm is not None and self.norms_width:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key, value = (
            part.unflatten(-1, (heads, self.head_dim))
            for part, heads in zip((query, key, value), self.heads, strict=True)
        )
        if self.query_norm is not None and self.key_norm is not None and not self.norms_width:
            query, key = self.query_norm(query), self.key_norm(key)
        return query, key, value
