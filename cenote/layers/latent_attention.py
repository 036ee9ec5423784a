"""Attention whose keys and values unfold from one short vector per token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.kernels.attention import attend
from cenote.layers.linear import Linear
from cenote.layers.norm import RMSNorm
from cenote.layers.rotary import Place, rotate
from cenote.layers.spec import BackboneSpec
from cenote.packed_batch import PackedBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSpec:
    """The sizes of a head's parts, and of the vectors that they unfold from."""

    still: int  # of queries and keys, what does not turn with the position
    turning: int
    value: int
    latent: int  # what keys and values come from
    query: int | None  # what queries come from; the state itself when unset
    bias: bool


class LatentAttention(nn.Module):
    """Attention to keys and values that unfold from a latent vector; what turns of a key is the same in every head."""

    def __init__(self, spec: BackboneSpec, sizes: LatentSpec) -> None:
        super().__init__()
        self.heads, self.causal, self.scale = spec.num_heads, spec.causal, spec.scale
        self.still, self.turning, self.value_dim = sizes.still, sizes.turning, sizes.value
        width, query = self.heads * (self.still + self.turning), sizes.query
        self.widths = [query or width, sizes.latent, self.turning]
        self.down = Linear(spec.hidden_size, sum(self.widths), bias=sizes.bias)
        self.query_norm = RMSNorm(query, 1e-6) if query else None
        self.query_up = Linear(query, width, bias=False) if query else None
        self.latent_norm = RMSNorm(sizes.latent, 1e-6)
        self.latent_up = Linear(sizes.latent, self.heads * (self.still + self.value_dim), bias=False)
        self.out = Linear(self.heads * self.value_dim, spec.hidden_size, bias=sizes.bias)

    def forward(self, x: Tensor, batch: PackedBatch, place: Place) -> Tensor:
        query, latent, turned = self.down(x).split(self.widths, dim=-1)
        if self.query_norm is not None and self.query_up is not None:
            query = self.query_up(self.query_norm(query))
        query, to_turn = query.unflatten(-1, (self.heads, -1)).split([self.still, self.turning], dim=-1)
        still = self.latent_up(self.latent_norm(latent)).unflatten(-1, (self.heads, -1))
        key, value = still.split([self.still, self.value_dim], dim=-1)
        assert place.turn is not None and self.scale is not None
        turned = rotate(turned[:, None], place.turn).expand(-1, self.heads, -1)
        query, key = torch.cat((query, rotate(to_turn, place.turn)), dim=-1), torch.cat((key, turned), dim=-1)
        # kernels know one head size: values get zeros up to that of the keys, which come out as zeros
        value = F.pad(value, (0, key.shape[-1] - self.value_dim))
        mixed = attend(query, key, value, batch, causal=self.causal, window=None, scale=self.scale)
        return self.out(mixed[..., : self.value_dim].flatten(-2))  # type: ignore[no-any-return]
