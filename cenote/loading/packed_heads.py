"""Heads on a CPU multiply with the kernels of its level."""

from __future__ import annotations

from cenote.kernels.cpu.library import Format, supports_format
from cenote.pooling.heads import Heads, SpladeHead

# a larger layer is a vocabulary, of which requests read single columns
MAX_OUTPUTS = 10_000


def pack_heads(heads: Heads, format: Format) -> None:
    """Pack the float32 layers of the heads of a model whose linear layers multiply in this format.

    The product of SPLADE with the vocabulary is as large as several layers: it multiplies in float16 where the layers
    do, or where they are quantized, and in bfloat16 where it is stored so. The other layers multiply in float32.
    """
    for layer in heads.linears():
        if layer.out_features <= MAX_OUTPUTS:
            layer.pack("float32")
    if isinstance(heads.splade, SpladeHead):
        vocabulary = heads.splade.vocabulary
        is_float16 = format != "float32" and supports_format("float16")
        is_bfloat16 = vocabulary.dtype == "bfloat16"
        vocabulary.pack("float16" if is_float16 else "bfloat16" if is_bfloat16 else "float32")
