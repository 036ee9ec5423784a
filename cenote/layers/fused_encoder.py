"""Backbones that our native code can run as a whole, recognised once they are loaded."""

from __future__ import annotations

import torch
from torch import Tensor

from cenote.kernels import native_encoder
from cenote.kernels.amx_linear import TileLinear
from cenote.kernels.native_encoder import BlockWeights, NativeEncoder, NormWeights, Tables
from cenote.layers.attention import Attention
from cenote.layers.backbone import Backbone, Block, Embedding, Table
from cenote.layers.mlp import MLP
from cenote.layers.norm import LayerNorm
from cenote.packed_batch import PackedBatch


class Stack:
    """All layers of a post-norm encoder at once, its embedding too if that is plain; weights stay in its modules."""

    def __init__(self, backbone: Backbone, blocks: list[BlockWeights]) -> None:
        self.embed = backbone.embed
        mixer = backbone.layers[0].mixer
        assert isinstance(mixer, Attention)
        heads, kv_heads, _ = mixer.heads
        self.encoder = NativeEncoder(
            blocks,
            _tables(backbone.embed),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=mixer.head_dim,
            causal=mixer.causal,
            window=mixer.window,
            scale=mixer.scale,
        )

    def __call__(self, batch: PackedBatch) -> Tensor | None:
        """States of tokens; None where a batch asks for more than the native code knows."""
        if batch.host_attended is not None or batch.stems is not None or batch.loose:
            return None
        if self.encoder.tables is None or batch.features is not None:
            return self.encoder.from_rows(self.embed(batch), batch)
        return self.encoder.from_tokens(batch)


def stack(backbone: Backbone) -> Stack | None:
    """The whole of a backbone, if all its layers are plain ones and run on the tiles of this processor."""
    if backbone.norm is not None or backbone.bias is not None or backbone.rotary is not None:
        return None
    blocks = [_weights(layer) for layer in backbone.layers]
    found = [block for block in blocks if block is not None]
    if len(found) < len(blocks) or not found or not native_encoder.fits(found, backbone.spec.size_per_head):
        return None
    spec = backbone.spec
    if spec.window is not None and len({spec.is_local(layer) for layer in range(spec.num_layers)}) > 1:
        return None
    return Stack(backbone, found)


def _weights(layer: object) -> BlockWeights | None:
    if type(layer) is not Block or not layer.post or type(layer.mixer) is not Attention or type(layer.mlp) is not MLP:
        return None
    mixer, mlp = layer.mixer, layer.mlp
    linears = (mixer.qkv, mixer.out, mlp.up, mlp.down)
    norms = (layer.mixer_norm, layer.mlp_norm)
    if not all(isinstance(linear, TileLinear) for linear in linears) or not all(type(n) is LayerNorm for n in norms):
        return None
    if mixer.softcap is not None or mixer.sinks is not None or mixer.query_norm is not None:
        return None
    return BlockWeights(*linears, *(NormWeights(n.weight, n.bias, n.eps) for n in norms))  # type: ignore[arg-type]


def _tables(embed: object) -> Tables | None:
    if type(embed) is not Embedding or type(embed.norm) is not LayerNorm:
        return None
    tables = [embed.tokens, embed.positions, embed.token_types]
    plain = all(table is None or type(table) is Table for table in tables)
    if not plain or embed.scale != 1.0 or embed.projection is not None or embed.tokens.weight.dtype != torch.bfloat16:
        return None
    tokens, positions, types = (None if table is None else table.weight for table in tables)
    assert tokens is not None
    norm = NormWeights(embed.norm.weight, embed.norm.bias, embed.norm.eps)
    return Tables(tokens, positions, types, embed.position_offset, norm)
