"""First step of an encoder-decoder: one decoder token per sequence, which attends to the states of the encoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cenote.layers.backbone import Backbone, build_mlp
from cenote.layers.linear import Linear
from cenote.layers.norm import make_norm
from cenote.layers.spec import BackboneSpec
from cenote.packed_batch import PackedBatch


class DecoderStepBackbone(Backbone):
    """An encoder whose last row of every sequence is replaced by the decoder's state of the first output token."""

    def __init__(self, start_token: int, num_layers: int, out_scale: float, spec: BackboneSpec, *make: Any) -> None:
        super().__init__(spec, *make)
        self.start_token, self.out_scale = start_token, out_scale
        self.decoder_layers = nn.ModuleList(DecoderStepLayer(spec) for _ in range(num_layers))
        self.decoder_norm = make_norm(spec)

    def run_layers(self, x: Tensor, batch: PackedBatch, **options: Any) -> Tensor:
        states = super().run_layers(x, batch, **options)
        step: Tensor = self.embed.get_parameter("tokens.weight")[self.start_token].expand(batch.num_seqs, -1)
        for layer in self.decoder_layers:
            step = layer(step, states, batch)
        return states.index_copy(0, batch.cu_seqlens[1:].long() - 1, self.decoder_norm(step) * self.out_scale)


class DecoderStepLayer(nn.Module):
    """One decoder layer on a single token: its self-attention sees that token alone, so it is a linear map."""

    def __init__(self, spec: BackboneSpec) -> None:
        super().__init__()
        inner = spec.num_heads * spec.head_size
        self.num_heads = spec.num_heads
        self.scale = spec.head_size**-0.5 if spec.scale is None else spec.scale
        self.self_norm, self.cross_norm, self.mlp_norm = (make_norm(spec) for _ in range(3))
        self.self_value = Linear(spec.hidden_size, inner, bias=False)
        self.self_out = Linear(inner, spec.hidden_size, bias=False)
        self.cross_query = Linear(spec.hidden_size, inner, bias=False)
        self.cross_key_value = Linear(spec.hidden_size, 2 * inner, bias=False)
        self.cross_out = Linear(inner, spec.hidden_size, bias=False)
        self.mlp = build_mlp(spec, 0)

    def forward(self, x: Tensor, states: Tensor, batch: PackedBatch) -> Tensor:
        """Return the new state of the token of every sequence, [num_seqs, hidden]."""
        x = x + self.self_out(self.self_value(self.self_norm(x)))
        x = x + self.cross_out(self._attend(self.cross_query(self.cross_norm(x)), states, batch))
        return x + self.mlp(self.mlp_norm(x))  # type: ignore[no-any-return]

    def _attend(self, query: Tensor, states: Tensor, batch: PackedBatch) -> Tensor:
        segments = batch.segment_ids
        key, value = self.cross_key_value(states).view(batch.num_tokens, 2, self.num_heads, -1).unbind(1)
        query = query.view(batch.num_seqs, self.num_heads, -1)[segments]
        scores = (query.float() * key.float()).sum(-1) * self.scale  # [tokens, heads]
        index = segments[:, None].expand_as(scores)
        largest = scores.new_full((batch.num_seqs, self.num_heads), -torch.inf).scatter_reduce(0, index, scores, "amax")
        weights = (scores - largest[segments]).exp()
        total = torch.zeros_like(largest).scatter_add(0, index, weights)
        mixed = torch.zeros(batch.num_seqs, *value.shape[1:], device=value.device)
        mixed = mixed.index_add(0, segments, weights[:, :, None] * value.float()) / total[:, :, None]
        return mixed.flatten(1).to(states.dtype)
