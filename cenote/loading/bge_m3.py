"""Load the sparse and ColBERT heads of bge-m3, which are stored in separate files."""

from __future__ import annotations

from pathlib import Path

from cenote.errors import LoadError
from cenote.loading.as_array import as_array
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.weights import open_weights_file
from cenote.pooling.layers import LayerFactory, LinearLayer
from cenote.utils.dtypes import Dtype

HEAD_NAMES = ("sparse_linear", "colbert_linear")  # lexical weight per token, embedding per token
HEAD_SUFFIXES = (".safetensors", ".pt")


def find_head_files(checkpoint: Checkpoint) -> tuple[Path, Path] | None:
    """Return the paths of both head files; None unless both exist."""
    sparse, colbert = (
        next((path for suffix in HEAD_SUFFIXES if (path := checkpoint.find_file(head + suffix)) is not None), None)
        for head in HEAD_NAMES
    )
    return None if sparse is None or colbert is None else (sparse, colbert)


def require_head_files(checkpoint: Checkpoint) -> tuple[Path, Path]:
    found = find_head_files(checkpoint)
    if found is None:
        names = " and ".join(f"{head}.pt" for head in HEAD_NAMES)
        raise LoadError(f"{checkpoint.folder} has no {names}, the heads of bge-m3; download the model again")
    return found


def load_linear(
    path: Path, in_features: int, out_features: int | None, layers: LayerFactory, dtype: Dtype
) -> LinearLayer:
    """Load a linear layer from a file of its own; `out_features` None takes the stored size."""
    stored = open_weights_file(path)
    found = {leaf: [name for name in stored.names() if name.rpartition(".")[2] == leaf] for leaf in ("weight", "bias")}
    if len(found["weight"]) != 1 or len(found["bias"]) > 1 or sum(map(len, found.values())) != len(stored.names()):
        raise LoadError(f"{path} contains {', '.join(stored.names()[:5])}; expected one linear layer: weight and bias")
    weight = as_array(stored.get(found["weight"][0]))
    if weight.ndim != 2 or weight.shape[1] != in_features or out_features not in (None, weight.shape[0]):
        expected = f"[{out_features or 'any'}, {in_features}]"
        raise LoadError(f"{path}: weight has shape {list(weight.shape)}; expected {expected}")
    bias = as_array(stored.get(found["bias"][0])) if found["bias"] else None
    if bias is not None and bias.shape != weight.shape[:1]:
        raise LoadError(f"{path}: bias has shape {list(bias.shape)}, weight has {list(weight.shape)}")
    return layers.make_linear(layers.put(weight, dtype), None if bias is None else layers.put(bias, dtype))
