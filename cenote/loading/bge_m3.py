"""Load the sparse and ColBERT heads of bge-m3, which are stored in separate files."""

from __future__ import annotations

from pathlib import Path

from cenote.errors import LoadError
from cenote.loading.weights import open_weights_file
from cenote.pooling.layers import LayerFactory, LinearLayer
from cenote.utils.dtypes import Dtype


def load_linear(
    path: Path, in_features: int, out_features: int | None, layers: LayerFactory, dtype: Dtype
) -> LinearLayer:
    """Load a linear layer from a file of its own; `out_features` None takes the stored size."""
    stored = open_weights_file(path)
    found = {leaf: [name for name in stored.names() if name.rpartition(".")[2] == leaf] for leaf in ("weight", "bias")}
    if len(found["weight"]) != 1 or len(found["bias"]) > 1 or sum(map(len, found.values())) != len(stored.names()):
        raise LoadError(f"{path} contains {', '.join(stored.names()[:5])}; expected one linear layer: weight and bias")
    weight = stored.get(found["weight"][0])
    if weight.ndim != 2 or weight.shape[1] != in_features or out_features not in (None, weight.shape[0]):
        expected = f"[{out_features or 'any'}, {in_features}]"
        raise LoadError(f"{path}: weight has shape {list(weight.shape)}; expected {expected}")
    bias = stored.get(found["bias"][0]) if found["bias"] else None
    if bias is not None and bias.shape != weight.shape[:1]:
        raise LoadError(f"{path}: bias has shape {list(bias.shape)}, weight has {list(weight.shape)}")
    return layers.make_linear(layers.put(weight, dtype), None if bias is None else layers.put(bias, dtype))
