"""Detection of backbones that the native encoder can run, after loading."""

from __future__ import annotations

import torch
from torch import Tensor

from cenote.kernels import native_encoder
from cenote.kernels.amx_linear import AMXLinear
from cenote.kernels.native_encoder import BlockWeights, EmbeddingTables, NativeEncoder, NormWeights
from cenote.layers.attention import Attention
from cenote.layers.backbone import Backbone, Block, EmbeddingTable, InputEmbedding
from cenote.layers.mlp import MLP
from cenote.layers.norm import LayerNorm
from cenote.packed_batch import PackedBatch


class FusedEncoder:
    """Run all layers of a post-norm encoder in native code, and its embedding if it is a plain InputEmbedding."""

    def __init__(self, backbone: Backbone, blocks: list[BlockWeights]) -> None:
        self.embed = backbone.embed
        mixer = backbone.layers[0].mixer
        assert isinstance(mixer, Attention)
        heads, kv_heads, _ = mixer.num_qkv_heads
        self.encoder = NativeEncoder(
            blocks,
            _embedding_tables(backbone.embed),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=mixer.head_dim,
            causal=mixer.causal,
            window=mixer.window,
            scale=mixer.scale,
        )

    def __call__(self, batch: PackedBatch) -> Tensor | None:
        """Return the hidden states, or None if the native code does not support this batch."""
        if batch.attended_lens_cpu is not None or batch.shared_prefixes is not None or batch.lens_are_upper_bounds:
            return None
        if self.encoder.embedding_tables is None or batch.inputs_embeds is not None:
            return self.encoder.encode_embeds(self.embed(batch), batch)
        return self.encoder.encode_ids(batch)


def try_fuse_encoder(backbone: Backbone) -> FusedEncoder | None:
    """Return a FusedEncoder for the backbone, or None if it has layers that the native code does not support."""
    if backbone.norm is not None or backbone.bias is not None or backbone.rotary is not None:
        return None
    blocks = [_block_weights(layer) for layer in backbone.layers]
    supported = [block for block in blocks if block is not None]
    if len(supported) < len(blocks) or not supported or not native_encoder.supports(supported, backbone.spec.head_size):
        return None
    spec = backbone.spec
    if spec.window is not None and len({spec.is_local(layer) for layer in range(spec.num_layers)}) > 1:
        return None
    return FusedEncoder(backbone, supported)


def _block_weights(layer: object) -> BlockWeights | None:
    if (
        type(layer) is not Block
        or not layer.is_post_norm
        or type(layer.mixer) is not Attention
        or type(layer.mlp) is not MLP
    ):
        return None
    mixer, mlp = layer.mixer, layer.mlp
    linears = (mixer.qkv, mixer.out, mlp.up, mlp.down)
    norms = (layer.mixer_norm, layer.mlp_norm)
    if not all(isinstance(linear, AMXLinear) for linear in linears) or not all(type(n) is LayerNorm for n in norms):
        return None
    if mixer.softcap is not None or mixer.sinks is not None or mixer.query_norm is not None:
        return None
    return BlockWeights(*linears, *(NormWeights(n.weight, n.bias, n.eps) for n in norms))  # type: ignore[arg-type]


def _embedding_tables(embed: object) -> EmbeddingTables | None:
    if type(embed) is not InputEmbedding or type(embed.norm) is not LayerNorm:
        return None
    tables = [embed.tokens, embed.positions, embed.token_types]
    is_plain = all(table is None or type(table) is EmbeddingTable for table in tables)
    if (
        not is_plain
        or embed.scale != 1.0
        or embed.projection is not None
        or embed.tokens.weight.dtype != torch.bfloat16
    ):
        return None
    tokens, positions, types = (None if table is None else table.weight for table in tables)
    assert tokens is not None
    norm = NormWeights(embed.norm.weight, embed.norm.bias, embed.norm.eps)
    return EmbeddingTables(tokens, positions, types, embed.position_offset, norm)
