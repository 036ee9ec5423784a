"""Load the sparse and ColBERT heads of bge-m3, which are stored in separate files."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from cenote.errors import LoadError
from cenote.layers.linear import Linear
from cenote.layers.torch_dtypes import to_tensor
from cenote.loading.weights import open_weights_file


def load_linear(
    path: Path, in_features: int, out_features: int | None, dtype: torch.dtype, device: torch.device
) -> Linear:
    """Load a linear layer from a file of its own; `out_features` None takes the stored size."""
    stored = open_weights_file(path)
    found = {leaf: [name for name in stored.names() if name.rpartition(".")[2] == leaf] for leaf in ("weight", "bias")}
    if len(found["weight"]) != 1 or len(found["bias"]) > 1 or sum(map(len, found.values())) != len(stored.names()):
        raise LoadError(f"{path} contains {', '.join(stored.names()[:5])}; expected one linear layer: weight and bias")
    weight = to_tensor(stored.get(found["weight"][0]))
    if weight.dim() != 2 or weight.shape[1] != in_features or out_features not in (None, weight.shape[0]):
        expected = f"[{out_features or 'any'}, {in_features}]"
        raise LoadError(f"{path}: weight has shape {list(weight.shape)}; expected {expected}")
    bias = to_tensor(stored.get(found["bias"][0])) if found["bias"] else None
    if bias is not None and bias.shape != weight.shape[:1]:
        raise LoadError(f"{path}: bias has shape {list(bias.shape)}, weight has {list(weight.shape)}")
    return make_linear(weight.to(device, dtype), None if bias is None else bias.to(device, dtype))


def make_linear(weight: Tensor, bias: Tensor | None, activation: str | None = None) -> Linear:
    """Return a layer of stored parameters."""
    with torch.device("meta"):
        layer = Linear(weight.shape[1], weight.shape[0], bias=bias is not None, activation=activation)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer
