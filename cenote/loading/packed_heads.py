"""Heads on a CPU multiply with the kernels of its level."""

from __future__ import annotations

import torch
from torch import nn

from cenote.kernels.cpu import packed_linear
from cenote.kernels.cpu.library import Format, supports_format
from cenote.kernels.cpu.packed_linear import PackedLinear
from cenote.layers.linear import Linear
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
            layer.packed = PackedLinear(layer, None, "float32")
    if isinstance(heads.splade, SpladeHead):
        is_float16 = format != "float32" and supports_format("float16")
        is_bfloat16 = heads.splade.head.classifier.weight.dtype is torch.bfloat16
        _pack_vocabulary(heads.splade, "float16" if is_float16 else "bfloat16" if is_bfloat16 else "float32")


def _pack_vocabulary(splade: SpladeHead, format: Format) -> None:
    last = splade.head.classifier
    if packed_linear.supports(last, None, format):
        with torch.device("meta"):
            product = nn.Linear(last.in_features, last.out_features, bias=False)
        product.weight = last.weight
        splade.packed_vocabulary = PackedLinear(product, None, format)
