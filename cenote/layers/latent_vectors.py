"""Attention of hidden states to learned latent vectors, followed by a gated MLP (NV-Embed)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.layers.backbone import Backbone
from cenote.layers.linear import Linear
from cenote.layers.norm import LayerNorm
from cenote.layers.spec import BackboneSpec, LatentSpec


class LatentLayer(nn.Module):
    """Attention of every state to the latent vectors, then a gated MLP; both pre-norm with residuals."""

    def __init__(self, size: int, spec: LatentSpec) -> None:
        super().__init__()
        inner = spec.num_heads * spec.head_dim
        self.num_heads = spec.num_heads
        self.vectors = nn.Parameter(torch.empty(spec.num_latents, size))
        self.norm, self.latent_norm, self.mlp_norm = (LayerNorm(size, 1e-5) for _ in range(3))
        self.query = Linear(size, inner, bias=False)
        self.key_value = Linear(size, 2 * inner, bias=False)
        self.out = Linear(inner, size, bias=False)
        self.up = Linear(size, 8 * size, bias=True)  # gate first
        self.down = Linear(4 * size, size, bias=True)
        self._key_value: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        key, value = self._latent_key_value()
        mixed = F.scaled_dot_product_attention(self._split(self.query(self.norm(x))), key, value)
        x = x + self.out(mixed.transpose(0, 1).flatten(-2))
        gate, up = self.up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.gelu(gate) * up)  # type: ignore[no-any-return]

    def _latent_key_value(self) -> tuple[Tensor, Tensor]:
        """Return keys and values of the latent vectors, [heads, latents, d]; computed once: no input changes them."""
        if self._key_value is None:
            key, value = self.key_value(self.latent_norm(self.vectors)).chunk(2, dim=-1)
            self._key_value = self._split(key), self._split(value)
        return self._key_value

    def _split(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), self.num_heads, -1).transpose(0, 1)


class LatentBackbone(Backbone):
    """A backbone with a latent attention layer after its final norm."""

    def __init__(self, latents: LatentSpec, spec: BackboneSpec, *factories: Any) -> None:
        super().__init__(spec, *factories)
        self.latents = LatentLayer(spec.hidden_size, latents)

    def run_layers(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.latents(super().run_layers(*args, **kwargs))  # type: ignore[no-any-return]
