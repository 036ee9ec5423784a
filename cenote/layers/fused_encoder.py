"""Detection of backbones whose layers can all run in one call of the C library, after loading."""

from __future__ import annotations

from copy import copy

import numpy as np
import torch
from torch import Tensor, nn

from cenote.kernels.cpu import encoder as level_encoder
from cenote.kernels.cpu.encoder import (
    EncoderShape,
    LayerWeights,
    LevelEncoder,
    NormWeights,
    PositionTables,
    RotaryRows,
    TableWeights,
)
from cenote.kernels.cpu.library import ACTIVATION_CODES, CPULevel, Format
from cenote.layers import packed_linear
from cenote.layers.attention import Attention
from cenote.layers.backbone import Backbone, Block, EmbeddingTable, InputEmbedding
from cenote.layers.linear import Linear
from cenote.layers.mlp import MLP, GatedMLP
from cenote.layers.norm import LayerNorm, Norm, RMSNorm
from cenote.layers.packed_linear import PackedLinearModule
from cenote.layers.rotary import RotaryEmbedding
from cenote.layers.spec import BackboneSpec
from cenote.layers.torch_dtypes import to_array, to_tensor
from cenote.packed_batch import PackedBatch
from cenote.utils.arrays import Array


class FusedEncoder:
    """Run all layers of a backbone with the kernels of a CPU level, and its embedding if it is an InputEmbedding."""

    def __init__(self, backbone: Backbone, level: CPULevel, layers: list[LayerWeights], shape: EncoderShape) -> None:
        self.embed, self.bias = backbone.embed, backbone.bias
        self.rotary, self.local_rotary = _float32_table(backbone.rotary), _float32_table(backbone.local_rotary)
        self.dtype = backbone.dtype
        tables = _table_weights(backbone.embed, backbone.dtype)
        self.encoder = LevelEncoder(level, layers, shape, tables, _level_norm(backbone.norm))

    def __call__(self, batch: PackedBatch) -> Tensor | None:
        """Return the hidden states, or None if the C code does not support this batch."""
        if batch.shared_prefixes is not None or batch.lens_are_upper_bounds:
            return None
        if batch.attended_lens_cpu is not None and self.encoder.keeps_tiles:
            return None
        tables = PositionTables(
            _rotary_rows(self.rotary, batch),
            _rotary_rows(self.local_rotary, batch),
            None if self.bias is None else to_array(self.bias(batch.max_seqlen, batch.device)),
            None if batch.attended_lens_cpu is None else np.array(batch.attended_lens_cpu, dtype=np.int64),
        )
        cu_seqlens = batch.cu_seqlens.numpy()
        found: Array | None
        if self.encoder.tables is None or batch.inputs_embeds is not None:
            found = self.encoder.encode_embeds(to_array(self.embed(batch)), cu_seqlens, tables)
        else:
            types = None if batch.token_type_ids is None else batch.token_type_ids.numpy()
            ids, positions = batch.token_ids.numpy(), batch.positions.numpy()
            found = self.encoder.encode_ids(ids, positions, types, cu_seqlens, tables)
        if found is None:
            return None
        states = torch.from_numpy(found) if self.encoder.dtype == "float32" else to_tensor(found)
        # a call of `to` without effect takes 1 % of the time of a short text: nothing of torch is in the caches then
        return states if states.dtype is self.dtype else states.to(self.dtype)


def try_fuse_encoder(backbone: Backbone) -> FusedEncoder | None:
    """Return a fused encoder for the backbone, or None if it has layers that the C code does not support."""
    plan = _plan_level_encoder(backbone, PackedLinearModule)
    if plan is None:
        return None
    level = plan[0][0].qkv.level
    linears = (x for layer in plan[0] for x in (layer.qkv, layer.out, layer.up, layer.down))
    return FusedEncoder(backbone, level, *plan) if all(x.level is level for x in linears) else None


def can_fuse_layers(backbone: Backbone, format: Format) -> bool:
    """Return whether all layers can run in one call once their linear layers are packed in this format."""
    plan = _plan_level_encoder(backbone, Linear)
    if plan is None:
        return False
    linears = [x for layer in plan[0] for x in (layer.qkv, layer.out, layer.up, layer.down)]
    return all(isinstance(x, Linear) and packed_linear.supports(x, x.activation, format) for x in linears)


def _plan_level_encoder(
    backbone: Backbone, linear_class: type[nn.Module]
) -> tuple[list[LayerWeights], EncoderShape] | None:
    """Return the layers and their shape, or None if the C code does not support a layer or one is of another class."""
    spec = backbone.spec
    is_post_norm = spec.norm_order == "post"
    if type(backbone) is not Backbone or not len(backbone.layers):
        return None
    if is_post_norm and (backbone.norm is not None or not spec.has_first_norm):
        return None
    rotary = [table for table in (backbone.rotary, backbone.local_rotary) if table is not None]
    if len({table.spec.interleaved for table in rotary}) > 1:
        return None
    rope = level_encoder.NO_ROPE if backbone.rotary is None else level_encoder.ROPE
    local_rope = rope if backbone.local_rotary is None else level_encoder.LOCAL_ROPE
    layers = [
        _layer_weights(layer, local_rope if spec.is_local(index) else rope, linear_class)
        for index, layer in enumerate(backbone.layers)
    ]
    supported = [layer for layer in layers if layer is not None]
    if len(supported) < len(layers) or not level_encoder.supports(supported):
        return None
    has_bias = backbone.bias is not None
    shapes = {_encoder_shape(layer, spec, has_bias) for layer in backbone.layers if isinstance(layer, Block)}
    return (supported, shapes.pop()) if len(shapes) == 1 else None


def _encoder_shape(layer: Block, spec: BackboneSpec, has_bias: bool) -> EncoderShape:
    """Return what all layers of an encoder have in common, according to this one."""
    mixer, mlp = layer.mixer, layer.mlp
    assert isinstance(mixer, Attention)
    return EncoderShape(
        num_heads=mixer.num_qkv_heads[0],
        num_kv_heads=mixer.num_qkv_heads[1],
        head_dim=mixer.head_dim,
        scale=mixer.scale,
        softcap=mixer.softcap,
        causal=mixer.causal,
        is_post_norm=layer.is_post_norm,
        residual_scale=1.0 if layer.is_post_norm else layer.residual_scale,
        has_interleaved_rope=spec.rope is not None and spec.rope.interleaved,
        has_full_width_qk_norm=mixer.has_full_width_qk_norm,
        gate_activation=mlp.activation if isinstance(mlp, GatedMLP) else None,
        has_bias=has_bias,
    )


def _layer_weights(layer: object, rope: int, linear_class: type[nn.Module]) -> LayerWeights | None:
    if type(layer) is not Block or type(layer.mixer) is not Attention or type(layer.mlp) not in (MLP, GatedMLP):
        return None
    mixer, mlp = layer.mixer, layer.mlp
    assert isinstance(mlp, MLP | GatedMLP)
    linears = (mixer.qkv, mixer.out, mlp.up, mlp.down)
    norms = (
        layer.mixer_norm,
        layer.mlp_norm,
        layer.mixer_out_norm,
        layer.mlp_out_norm,
        mixer.query_norm,
        mixer.key_norm,
    )
    if not all(isinstance(linear, linear_class) for linear in linears):
        return None
    if not all(norm is None or type(norm) in (Norm, LayerNorm, RMSNorm) for norm in norms):
        return None
    if mixer.sinks is not None or (isinstance(mlp, GatedMLP) and mlp.activation not in ACTIVATION_CODES):
        return None
    # the plan of a backbone that is not packed yet has its linear layers instead
    qkv, out, up, down = (x.packed if isinstance(x, PackedLinearModule) else x for x in linears)
    level_norms = tuple(_level_norm(norm) for norm in norms)
    return LayerWeights(qkv, out, up, down, level_norms, rope, mixer.window)  # type: ignore[arg-type]


def _level_norm(norm: Norm | None) -> NormWeights | None:
    """Return the weights of a norm; None for the identity."""
    if isinstance(norm, RMSNorm):
        return NormWeights(to_array(norm.weight.float() + norm.offset), None, norm.eps, is_rms=True)
    if isinstance(norm, LayerNorm):
        return NormWeights(_optional_array(norm.weight), _optional_array(norm.bias), norm.eps, is_rms=False)
    return None


def _float32_table(table: RotaryEmbedding | None) -> RotaryEmbedding | None:
    """Return the table with the angles of a bfloat16 model unrounded: the C code rotates in float32."""
    if table is None or table.cos.dtype is torch.float32:
        return table
    unrounded = copy(table)
    unrounded.prepare_buffers(torch.device("cpu"), torch.float32)
    return unrounded


def _rotary_rows(table: RotaryEmbedding | None, batch: PackedBatch) -> RotaryRows | None:
    if table is None:
        return None
    cos_sin = table(batch.positions, batch.mrope_positions)
    return RotaryRows(to_array(cos_sin.cos.flatten(1)), to_array(cos_sin.sin.flatten(1)))


def _table_weights(embed: object, dtype: torch.dtype) -> TableWeights | None:
    if type(embed) is not InputEmbedding or type(embed.norm) is not LayerNorm:
        return None
    tables = [embed.tokens, embed.positions, embed.token_types]
    is_plain = all(table is None or type(table) is EmbeddingTable for table in tables)
    if not is_plain or embed.scale != 1.0 or embed.projection is not None or embed.tokens.weight.dtype != dtype:
        return None
    tokens, positions, types = (None if table is None else to_array(table.weight) for table in tables)
    norm = _level_norm(embed.norm)
    assert tokens is not None and norm is not None
    return TableWeights(tokens, positions, types, embed.position_offset, norm)


def _optional_array(tensor: Tensor | None) -> Array | None:
    return None if tensor is None else to_array(tensor)
