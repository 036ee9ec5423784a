"""Deterministic results: prepare a backbone so that the states of a sequence do not depend on its batch."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from cenote.kernels.fixed_rows import FixedRowsLinear, SizesByShape, apply_elementwise
from cenote.kernels.gpu.triton_support import HALF_DTYPES, can_use_triton
from cenote.kernels.linear import PrepackedLinear
from cenote.layers.attention import Attention
from cenote.layers.backbone import Backbone, Block, InputEmbedding
from cenote.layers.linear import Linear
from cenote.layers.mlp import MLP, GatedMLP
from cenote.layers.norm import LayerNorm, Norm, RMSNorm
from cenote.layers.packed_linear import PackedLinearModule

# rows of a batch start at multiples of it: some libraries sum in another order from other addresses
ALIGNED_BYTES = 64
# largest heads of the packed attention kernels
MAX_GPU_HEAD_SIZE = 128


def prepare_deterministic(backbone: nn.Module) -> bool:
    """Replace the layers of a backbone whose results for a row depend on the other rows.

    Return whether it can run batches after that. Other backbones are left as they are: they compute the same bits only
    if every sequence runs alone.
    """
    if not (isinstance(backbone, Backbone) and is_batch_invariant_structure(backbone)):
        return False
    sizes_by_shape: SizesByShape = {}
    embed, spec = backbone.embed, backbone.spec
    assert isinstance(embed, InputEmbedding)
    if embed.projection is not None:
        size = spec.embedding_size or spec.hidden_size
        embed.projection = _fix_rows(embed.projection, size, sizes_by_shape)  # type: ignore[assignment]
    for layer in backbone.layers:
        mixer: Any = layer.mixer
        mlp: Any = layer.mlp
        mixer.qkv = _fix_rows(mixer.qkv, spec.hidden_size, sizes_by_shape)
        mixer.out = _fix_rows(mixer.out, mixer.qkv_sizes[0], sizes_by_shape)
        mlp.up = _fix_rows(mlp.up, spec.hidden_size, sizes_by_shape)
        mlp.down = _fix_rows(mlp.down, spec.intermediate_size, sizes_by_shape)
        if isinstance(mlp, GatedMLP):
            mlp.activation_fn = partial(apply_elementwise, mlp.activation_fn)
    _measure_block_sizes(backbone, embed.tokens.weight.device)
    return True


def is_batch_invariant_structure(backbone: Backbone) -> bool:
    """Return whether all layers are of kinds that compute each row, or each sequence, by itself."""
    embed, spec = backbone.embed, backbone.spec
    if type(backbone) is not Backbone or type(embed) is not InputEmbedding or backbone.vision is not None:
        return False
    tables = (backbone.rotary, backbone.local_rotary)
    if backbone.bias is not None or any(table is not None and table.original_max_positions for table in tables):
        return False
    element_size = torch.empty((), dtype=backbone.dtype).element_size()
    widths = (spec.hidden_size, spec.intermediate_size, spec.embedding_size or spec.hidden_size)
    if embed.tokens.weight.is_cuda:
        # the packed Triton kernels; others are selected by the batch
        has_kernel = can_use_triton(embed.tokens.weight) and backbone.dtype in HALF_DTYPES
        if not has_kernel or spec.head_size > MAX_GPU_HEAD_SIZE or spec.head_size % 8:
            return False
    elif any(width * element_size % ALIGNED_BYTES for width in (*widths, spec.num_key_value_heads * spec.head_size)):
        return False
    return (
        all(_is_invariant_block(layer) for layer in backbone.layers)
        and (embed.projection is None or _is_supported_linear(embed.projection))
        and all(type(norm) in (Norm, LayerNorm, RMSNorm) for norm in backbone.modules() if isinstance(norm, Norm))
    )


def _is_invariant_block(layer: nn.Module) -> bool:
    if type(layer) is not Block or type(layer.mixer) is not Attention or type(layer.mlp) not in (MLP, GatedMLP):
        return False
    linears = (layer.mixer.qkv, layer.mixer.out, layer.mlp.up, layer.mlp.down)
    return layer.mixer.softcap is None and layer.mixer.sinks is None and all(map(_is_supported_linear, linears))


def _is_supported_linear(linear: object) -> bool:
    return type(linear) in (Linear, PrepackedLinear, PackedLinearModule)


def _fix_rows(linear: nn.Module, in_features: int, sizes_by_shape: SizesByShape) -> nn.Module:
    # the order of the sums of native code depends on the layer alone
    if isinstance(linear, PackedLinearModule):
        return linear
    assert isinstance(linear, Linear | PrepackedLinear)
    return FixedRowsLinear(linear, in_features, sizes_by_shape)


def _measure_block_sizes(backbone: Backbone, device: torch.device) -> None:
    """Measure the block sizes now rather than during the first request."""
    like = torch.empty(0, dtype=backbone.dtype, device=device)
    with torch.inference_mode():
        for module in backbone.modules():
            if isinstance(module, FixedRowsLinear):
                module.get_block_sizes(like)
