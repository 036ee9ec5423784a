"""Heads on a CPU multiply with the kernels of its level."""

from __future__ import annotations

import torch

from cenote.kernels.cpu.library import Format, supports_format
from cenote.kernels.cpu.packed_linear import PackedLinear
from cenote.layers import packed_linear
from cenote.layers.linear import Linear
from cenote.layers.packed_linear import PackedLinearModule, pack_linear
from cenote.layers.torch_dtypes import to_array
from cenote.pooling.heads import Heads, SpladeHead

# a larger layer is a vocabulary, of which requests read single columns
MAX_OUTPUTS = 10_000


def pack_heads(heads: Heads, format: Format) -> None:
    """Pack the float32 layers of the heads of a model whose linear layers multiply in this format.

    The product of SPLADE with the vocabulary is as large as several layers: it multiplies in float16 where the layers
    do, or where they are quantized, and in bfloat16 where it is stored so. The other layers multiply in float32.
    """
    for layer in heads.modules():
        if (
            isinstance(layer, Linear)
            and layer.out_features <= MAX_OUTPUTS
            and packed_linear.supports(layer, None, "float32")
        ):
            layer.packed = pack_linear(layer, None, "float32")
    if isinstance(heads.splade, SpladeHead):
        is_float16 = format != "float32" and supports_format("float16")
        is_bfloat16 = heads.splade.head.classifier.weight.dtype is torch.bfloat16
        _pack_vocabulary(heads.splade, "float16" if is_float16 else "bfloat16" if is_bfloat16 else "float32")


def _pack_vocabulary(splade: SpladeHead, format: Format) -> None:
    last = splade.head.classifier
    if packed_linear.supports(last, None, format):
        splade.packed_vocabulary = PackedLinearModule(PackedLinear(to_array(last.weight), None, None, format))
